"""Saves and loads programs, `.gpx`: a zip archive of JSON and safetensors."""

from graphport.program.files.reading import load
from graphport.program.files.writing import save

__all__ = ["load", "save"]
