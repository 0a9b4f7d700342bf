"""A module as a folder: Python source to import, and a file of weights.

The source makes every submodule without its constructor, from its class and its attributes, so that
modules of any class come back as they were. Weights are read with `weights_only=True`, and from
beside the source: the folder can be moved. Nothing in it is pickled code.
"""

from __future__ import annotations

import keyword
import os
from pathlib import Path

import torch
from torch.fx import GraphModule

from graphport.arguments import PATH, TEXT, takes
from graphport.errors import InputError
from graphport.fx.copying import require_graph_module
from graphport.fx.module_source import Writer
from graphport.process import contained
from graphport.program.replacing import replacing

_WEIGHTS = "weights.pt"


@takes(folder=PATH, module_name=TEXT)
@contained
def to_folder(
    gm: GraphModule, folder: str | os.PathLike[str], module_name: str = "FxModule"
) -> None:
    """Write `gm` as a package whose `module_name` is a class that needs no arguments.

        >>> import tempfile
        >>> gm = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 2)))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     to_folder(gm, folder, "Net")
        ...     sorted(os.listdir(folder))
        ['__init__.py', 'module.py', 'weights.pt']

    Then `from folder import Net; Net()(x)` computes what `gm(x)` does. Functions and classes that
    the graph uses are imported by name; what cannot be (a lambda, a hook) is a
    `SerializationError`. Of an exported program, checks of inputs are left out: `gp.save` has them.
    """
    require_graph_module(gm)
    if not module_name.isidentifier() or keyword.iskeyword(module_name):
        raise InputError(
            f"{module_name!r} cannot be the name of a class", fix='a name such as "FxModule"'
        )
    writer = Writer(gm, module_name, _WEIGHTS)
    package = f'from .module import {module_name}\n\n__all__ = ["{module_name}"]\n'
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / name for name in (_WEIGHTS, "module.py", "__init__.py")]
    with replacing(*paths) as (weights, source, init):
        torch.save(writer.weights, weights)
        source.write(writer.source.encode())
        init.write(package.encode())
