"""Writes a graph module as a folder: Python source to import, and a file of weights."""

from __future__ import annotations

import builtins
import enum
import keyword
import math
import os
import re
import textwrap
from collections import OrderedDict
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule

from graphport.arguments import PATH, TEXT, check_arguments
from graphport.compat.torch import pytree
from graphport.errors import InputError, SerializationError
from graphport.fx.graphs import require_graph_module
from graphport.process import restore_on_exit
from graphport.program.atomic_write import write_atomically
from graphport.program.codegen import find_free_name
from graphport.tensors.lazy import lacks_data

_HEAD = '''"""{name}, as graphport.fx.to_folder has written it."""

import pathlib
{imports}

_WEIGHTS = pathlib.Path(__file__).with_name({file!r})


def _filled(module, attributes=(), parameters=(), buffers=(), passing=(), children=()):
    """Give a bare module its attributes, weights and submodules."""
    torch.nn.Module.__init__(module)
    vars(module).update(attributes)
    for name, parameter in dict(parameters).items():
        module.register_parameter(name, parameter)
    for name, buffer in dict(buffers).items():
        module.register_buffer(name, buffer, persistent=name not in passing)
    for name, child in dict(children).items():
        module.add_module(name, child)
    if isinstance(module, torch.nn.RNNBase):
        module._init_flat_weights()
    return module


def _made(kind, **parts):
    return _filled(kind.__new__(kind), **parts)


'''

_CLASS = """{prelude}class {name}(torch.nn.Module):
{body}

"""

_INIT = """def __init__(self):
    w = torch.load(_WEIGHTS, weights_only=True)
    frozen = {frozen}
    for name in {parameters}:
        w[name] = torch.nn.Parameter(w[name], requires_grad=name not in frozen)
"""

_BASE_ATTRIBUTES = frozenset(vars(nn.Module())) - {"training"}
_DERIVED_ATTRIBUTES = {"_flat_weights", "_flat_weight_refs"}  # lists of an RNN's own parameters
_LITERALS = (bool, int, str, bytes, type(None), type(Ellipsis))
_REPR_TYPES = (torch.dtype, torch.layout, torch.memory_format)


class ModuleSourceWriter:
    """The source of a graph module, with the weights that it refers to by name."""

    def __init__(self, gm: GraphModule, name: str, file: str) -> None:
        self.weights: dict[str, torch.Tensor] = {}
        self._names: dict[int, str] = {}
        self._trained: dict[str, bool] = {}
        self._imports = {"torch": "import torch"}
        self._classes: list[str] = []
        self._made: dict[int, str] = {}
        self._lines: list[str] = []
        self._taken = {name}
        self._lines.append(_format_call("_filled", "self", *self._parts(gm, "")))
        frozen = [name for name, trained in self._trained.items() if not trained]
        init = _INIT.format(parameters=_format_list(self._trained), frozen=_format_list(frozen)) + (
            textwrap.indent("\n".join(self._lines), "    ")
        )
        root = self._class(gm, name, init)
        if name in self._imports:
            raise InputError(f"{name!r} has another meaning in the source", fix="another name")
        imports = "\n".join(sorted(self._imports.values()))
        head = _HEAD.format(name=name, imports=imports, file=file)
        self.source = (head + "".join(self._classes) + root).rstrip() + "\n"

    # Modules

    def _module(self, module: nn.Module, path: str) -> str:
        """The variable of a submodule; each is made once, however often it is used."""
        if id(module) not in self._made:
            kind = self._kind(module, path)
            parts = self._parts(module, path)
            variable = self._unique(re.sub(r"\W", "_", f"m_{path}"))
            self._lines.append(f"{variable} = {_format_call('_made', kind, *parts)}")
            self._made[id(module)] = variable
        return self._made[id(module)]

    def _unique(self, wanted: str) -> str:
        name = find_free_name(wanted, self._taken.__contains__, numbered=False)
        self._taken.add(name)
        return name

    def _kind(self, module: nn.Module, path: str) -> str:
        if isinstance(module, torch.jit.ScriptModule):
            raise _serialization_error(path, "is a ScriptModule, which has no source in Python")
        if not isinstance(module, GraphModule):
            return self._import_name(type(module), path)
        name = self._unique(re.sub(r"\W", "_", f"Graph_{path}"))
        self._classes.append(self._class(module, name, None))
        return name

    def _class(self, gm: GraphModule, name: str, init: str | None) -> str:
        code = gm.graph.python_code("self")
        for alias, value in code.globals.items():
            if re.search(rf"\b{alias}\b", code.src):
                self._import_as(alias, value)
        # Before the function stand calls that are for the whole file.
        before, forward = re.split(r"^(?=def |async def )", code.src, maxsplit=1, flags=re.M)
        methods = [m for m in (init, forward.strip()) if m]
        body = textwrap.indent("\n\n".join(methods), "    ")
        prelude = before.strip()
        return _CLASS.format(prelude=f"{prelude}\n\n\n" if prelude else "", name=name, body=body)

    def _parts(self, module: nn.Module, path: str) -> list[str]:
        """The arguments of `_filled`."""
        self._require_no_hooks(module, path)
        attributes = {
            k: self._value(v, _join_path(path, k))
            for k, v in vars(module).items()
            if k not in _BASE_ATTRIBUTES | _DERIVED_ATTRIBUTES and _is_used(module, k, v)
        }
        parameters = {
            k: self._tensor(v, _join_path(path, k)) for k, v in module._parameters.items()
        }
        buffers = {k: self._tensor(v, _join_path(path, k)) for k, v in module._buffers.items()}
        children = {
            k: "None" if m is None else self._module(m, _join_path(path, k))
            for k, m in module._modules.items()
        }
        passing = sorted(module._non_persistent_buffers_set)
        parts = {
            "attributes": _format_dict(attributes) if attributes else "",
            "parameters": _format_dict(parameters) if parameters else "",
            "buffers": _format_dict(buffers) if buffers else "",
            "passing": repr(passing) if passing else "",
            "children": _format_dict(children) if children else "",
        }
        return [f"{name}={value}" for name, value in parts.items() if value]

    def _require_no_hooks(self, module: nn.Module, path: str) -> None:
        hooks = [
            h
            for name, table in vars(module).items()
            if name.endswith("_hooks") and isinstance(table, dict)
            for h in table.values()
        ]
        # An exported program's own are about its inputs, and left out.
        foreign = [h for h in hooks if not _get_module_name(h).startswith("graphport.")]
        if foreign:
            raise _serialization_error(
                path, f"has a hook, {foreign[0]!r}", "remove it before writing"
            )

    # Values

    def _tensor(self, tensor: torch.Tensor | None, path: str) -> str:
        if tensor is None:
            return "None"
        if id(tensor) not in self._names:
            if lacks_data(tensor) or isinstance(tensor, nn.parameter.UninitializedTensorMixin):
                raise _serialization_error(path, "has no data to write", "load its weights first")
            self._names[id(tensor)] = path
            self.weights[path] = tensor.detach()
            if isinstance(tensor, nn.Parameter):
                self._trained[path] = tensor.requires_grad
        return f"w[{self._names[id(tensor)]!r}]"

    def _value(self, value: Any, path: str) -> str:
        """An attribute as an expression."""
        if type(value) in _LITERALS or isinstance(value, _REPR_TYPES):
            return repr(value)
        if type(value) in (float, complex):
            return _format_number(value)
        if isinstance(value, torch.Tensor):
            return self._tensor(value, path)
        if isinstance(value, torch.device):
            return f"torch.{value!r}"
        if type(value) in _CONTAINERS:
            items = [self._value(v, path) for v in value]
            return _CONTAINERS[type(value)].format("".join(f"{i}, " for i in items))
        if type(value) in (dict, OrderedDict):
            pairs = [(self._value(k, path), self._value(v, path)) for k, v in value.items()]
            return _format_dict(dict(pairs), quoted=False)
        if isinstance(value, enum.Enum):
            return f"{self._import_name(type(value), path)}[{value.name!r}]"
        if isinstance(value, pytree.TreeSpec):
            self._imports["pytree"] = f"import {pytree.__name__} as pytree"
            return f"pytree.treespec_loads({pytree.treespec_dumps(value)!r})"
        return self._import_name(value, path)

    def _import_name(self, value: object, path: str) -> str:
        """The name of a class, function or operator, which the source imports."""
        short = getattr(value, "__name__", "")
        if isinstance(value, type) and getattr(nn, short, None) is value:
            return f"torch.nn.{short}"
        module, name = _find_import(value, path)
        if module == "torch" or module.startswith("torch."):
            self._imports[module] = f"import {module}"
            return f"{module}.{name}"
        alias = f"{module}.{name}".replace(".", "_")
        self._import_as(alias, value)
        return alias

    def _import_as(self, alias: str, value: object) -> None:
        if getattr(builtins, alias, None) is value or alias == "torch":
            return
        if isinstance(value, str):  # a type, as `from __future__ import annotations` leaves it
            self._imports[alias] = f"{alias} = {value!r}"
        elif isinstance(value, float):
            self._imports[alias] = f"from math import {alias}"
        elif isinstance(value, ModuleType):
            self._imports[alias] = f"import {value.__name__} as {alias}"
        elif value is type(None):
            self._imports[alias] = f"from types import NoneType as {alias}"
        else:
            module, name = _find_import(value, alias)
            first, *others = name.split(".")
            self._imports[alias] = f"from {module} import {first} as {alias}" + (
                f"\n{alias} = {'.'.join([alias, *others])}" if others else ""
            )


_CONTAINERS = {
    list: "[{}]",
    tuple: "({})",
    set: "set([{}])",
    frozenset: "frozenset([{}])",
    torch.Size: "torch.Size([{}])",
}


def _is_used(module: nn.Module, name: str, value: object) -> bool:
    """Of a graph module, only what its code reads: the rest is the graph's."""
    if not isinstance(module, GraphModule):
        return True
    if name == "training" or isinstance(value, pytree.TreeSpec):
        return True
    return any(n.op == "get_attr" and n.target.split(".")[0] == name for n in module.graph.nodes)


def _find_import(value: object, path: str) -> tuple[str, str]:
    """Module and name under which a value can be imported; `path` is where it is used."""
    module = _get_module_name(value)
    for attribute in ("__qualname__", "_name", "__name__"):
        name = getattr(value, attribute, None)
        if (
            isinstance(name, str)
            and module not in ("", "__main__")
            and _is_importable(module, name, value)
        ):
            return module, name
    raise _serialization_error(
        path,
        f"is {value!r}, which cannot be imported by name",
        "define it at the top of a module of its own, or trace through it",
    )


def _is_importable(module: str, name: str, value: object) -> bool:
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return False
    return found is value


def _get_module_name(value: object) -> str:
    return getattr(value, "__module__", None) or ""


def _format_number(value: float | complex) -> str:
    if isinstance(value, complex):
        return f"complex({_format_number(value.real)}, {_format_number(value.imag)})"
    return repr(value) if math.isfinite(value) else f'float("{value}")'


def _format_dict(items: dict[str, str], quoted: bool = True) -> str:
    return "{" + ", ".join(f"{k!r}: {v}" if quoted else f"{k}: {v}" for k, v in items.items()) + "}"


def _format_call(function: str, *arguments: str) -> str:
    """One argument to a line."""
    return f"{function}(\n" + "".join(f"    {a},\n" for a in arguments) + ")"


def _format_list(items: Iterable[str]) -> str:
    shown = [*items]
    return "[\n" + "".join(f"        {i!r},\n" for i in shown) + "    ]" if shown else "[]"


def _join_path(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _serialization_error(path: str, what: str, fix: str = "") -> SerializationError:
    return SerializationError(f"{path or 'the module'} {what}", fix=[fix] if fix else [])


# The folder: Python source to import, and a file of weights.
#
# The source makes every submodule without its constructor, from its class and its attributes, so
# that modules of any class come back as they were. Weights are read with `weights_only=True`, and
# from beside the source: the folder can be moved. Nothing in it is pickled code.

_WEIGHTS = "weights.pt"


@check_arguments(folder=PATH, module_name=TEXT)
@restore_on_exit
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
    writer = ModuleSourceWriter(gm, module_name, _WEIGHTS)
    package = f'from .module import {module_name}\n\n__all__ = ["{module_name}"]\n'
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / name for name in (_WEIGHTS, "module.py", "__init__.py")]
    with write_atomically(*paths) as (weights, source, init):
        torch.save(writer.weights, weights)
        source.write(writer.source.encode())
        init.write(package.encode())
