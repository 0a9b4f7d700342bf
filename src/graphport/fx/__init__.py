"""The FX toolkit: what works on graphs and symbolic sizes whatever they were captured with."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphport.fx.splitting import split_module
    from graphport.fx.validation import validate

_PLACES = {
    "split_module": "splitting",
    "validate": "validation",
}
"""The file of each name, loaded when it is first used; no file is called as a name is."""

__all__ = ["split_module", "validate"]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'graphport.fx' has no attribute {name!r}")
    found = getattr(import_module(f"graphport.fx.{_PLACES[name]}"), name)
    globals()[name] = found
    return found
