"""`graphport`, the command. Reading the command line loads neither torch nor onnx."""

from graphport.cli.main import main

__all__ = ["main"]
