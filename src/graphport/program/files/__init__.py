"""Programs in files, `.gpx`: a zip archive of JSON and safetensors. See docs/format.md."""

from graphport.program.files.reading import load
from graphport.program.files.writing import save

__all__ = ["load", "save"]
