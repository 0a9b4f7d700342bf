"""Interprets graphs of TorchScript, with the operators that the tracer sees.

TorchScript's own interpreter has no symbolic numbers. Branches and loops are those that the example
takes, and guards say so, as in Python. What would change the state of a module other than by a
write to a tensor is refused: it lives in C++, where nothing restores it.
"""

from __future__ import annotations

import collections
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from graphport import source
from graphport.capture.torchscript import operators
from graphport.compat.torch import Graph, ScriptObject, jit_pass_inline, parse_schema
from graphport.errors import UnsupportedError

Env = dict[str, Any]
CallOperator = Callable[[Any, Sequence[Any], dict[str, Any]], Any]
EnterModule = Callable[[Any], AbstractContextManager[object]]


class Interpreter:
    """What the graphs of one capture have in common."""

    def __init__(self, call_operator: CallOperator, enter_module: EnterModule) -> None:
        self.call_operator = call_operator
        self.enter_module = enter_module
        self._bodies: dict[Any, Any] = {}
        """Graphs of the functions that graphs call, by the call."""
        self._of_modules: dict[int, Any] = {}
        """Lists and dicts that are attributes of modules, by id."""

    def call_method(self, method: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """A call in Python; who called a module has entered it."""
        return self._run_graph(method.graph, _bind(method.schema, [method.owner, *args], kwargs))

    def call_function(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        return self._run_graph(function.graph, _bind(function.schema, args, kwargs))

    def _run_method(self, owner: Any, method: Any, values: Sequence[Any]) -> Any:
        if method.name != "forward":
            return self._run_graph(method.graph, values)
        with self.enter_module(owner):
            return self._run_graph(method.graph, values)

    def _run_graph(self, graph: Any, values: Sequence[Any]) -> Any:
        env = dict(zip((v.debugName() for v in graph.inputs()), values, strict=True))
        found = self._run_block(graph, env, ())
        return found[0] if len(found) == 1 else tuple(found)

    def _run_block(self, block: Any, env: Env, values: Sequence[Any]) -> list[Any]:
        if values:
            names = (v.debugName() for v in block.inputs())
            env.update(zip(names, values, strict=True))
        for node in block.nodes():
            with _set_line(_find_line(node) or source.running.line):
                self._run_node(node, env)
        return [env[v.debugName()] for v in block.outputs()]

    def _run_node(self, node: Any, env: Env) -> None:
        kind = node.kind()
        args = [env[v.debugName()] for v in node.inputs()]
        step = _STEPS.get(kind)
        results = self._call(node, kind, args) if step is None else step(self, node, args, env)
        for value, result in zip(node.outputs(), results, strict=True):
            env[value.debugName()] = result

    # Operators

    def _call(self, node: Any, kind: str, args: list[Any]) -> Sequence[Any]:
        if kind in operators.MUTATES and id(args[0]) in self._of_modules:
            raise _refuse_change("writes to a list or dict that is an attribute of a module")
        function = operators.find_function(kind, args)
        schema = _read_schema(node.schema())
        if function is None:
            result = self._call_torch(kind, schema, args)
        else:
            result = function(*args)
        count = node.outputsSize()
        if count == 1 and schema is not None and operators.is_number(result):
            return [operators.coerce(str(schema.returns[0].type), result)]
        return [result] if count == 1 else [] if count == 0 else list(result)

    def _call_torch(self, kind: str, schema: Any, args: Sequence[Any]) -> Any:
        op = _find_operator(schema)
        if op is None:
            raise UnsupportedError(
                f"{kind} of TorchScript",
                where=source.locate_user_line(),
                fix="use the Python module or function that was scripted",
            )
        values = [
            operators.read_code(str(a.real_type), x)
            for a, x in zip(schema.arguments, args, strict=True)
        ]
        pairs = list(zip(schema.arguments, values, strict=True))
        positional = [x for a, x in pairs if not a.kwarg_only]
        keywords = {a.name: x for a, x in pairs if a.kwarg_only}
        return self.call_operator(op, positional, keywords)

    # Steps that are no operators

    def _branch(self, node: Any, args: list[Any], env: Env) -> list[Any]:
        taken, other = node.blocks()
        if not _ask(args[0], _find_message(taken), _find_message(other)):
            taken = other
        return self._run_block(taken, env, ())

    def _loop(self, node: Any, args: list[Any], env: Env) -> list[Any]:
        count, going, *carried = args
        (block,) = node.blocks()
        step = 0
        while step < int(count) and going:
            going, *carried = self._run_block(block, env, [step, *carried])
            step += 1
        return carried

    def _read_attribute(self, node: Any, args: list[Any], env: Env) -> list[Any]:
        owner, name = args[0], node.s("name")
        read = owner.getattr if isinstance(owner, ScriptObject) else None
        value = read(name) if read else getattr(owner, name)
        self._note_containers(value)
        return [value]

    def _note_containers(self, value: Any) -> None:
        if isinstance(value, (list, tuple, dict)):
            if not isinstance(value, tuple):
                self._of_modules[id(value)] = value
            for x in value.values() if isinstance(value, dict) else value:
                self._note_containers(x)

    def _write_attribute(self, node: Any, args: list[Any], env: Env) -> list[Any]:
        name = node.s("name")
        fix = f"self.{name}.copy_(...)" if isinstance(args[1], torch.Tensor) else None
        raise _refuse_change(f"assigns self.{name}", fix)

    def _call_method(self, node: Any, args: list[Any], env: Env) -> list[Any]:
        owner, name = args[0], node.s("name")
        if not isinstance(owner, ScriptObject):
            return [getattr(owner, name)(*args[1:])]
        return [self._run_method(owner, owner._get_method(name), args)]

    def _call_function(self, node: Any, args: list[Any], env: Env) -> list[Any]:
        body = self._bodies.get(node)
        if body is None:
            body = self._bodies[node] = _inline_call(node)
        return [self._run_graph(body, args[1:])]

    def _call_python(self, node: Any, args: list[Any], env: Env) -> Sequence[Any]:
        """A function that was left in Python: of `torch.jit.ignore`, or a traced Function."""
        given, scalars = iter(args), iter(node.scalar_args())
        values = [next(given if kind == "d" else scalars) for kind in node.cconv()]
        with _set_line(None):
            result = node.pyobj()(*values)
        return [result] if node.outputsSize() == 1 else list(result)

    def _fork(self, node: Any, args: list[Any], env: Env) -> list[Any]:
        return [self._run_graph(node.g("Subgraph"), args)]


# Attributes of nodes


def _read_constant(_: Interpreter, node: Any, args: list[Any], env: Env) -> list[Any]:
    value = node.output().toIValue()
    return [list(value) if isinstance(value, list) else value]


def _make_list(_: Interpreter, node: Any, args: list[Any], env: Env) -> list[Any]:
    return [args]


def _make_tuple(_: Interpreter, node: Any, args: list[Any], env: Env) -> list[Any]:
    kind = node.output().type()
    fields = tuple(_FIELD.findall(_remove_inner(kind.str())))
    if not kind.str().startswith("NamedTuple"):
        return [tuple(args)]
    return [_named_tuple(kind.annotation_str.rpartition(".")[2], fields)(*args)]


_FIELD = re.compile(r"(\w+) : ")


def _remove_inner(text: str) -> str:
    """The text of a type without what stands within inner parentheses."""
    kept, depth = [], 0
    for c in text:
        depth += (c == "(") - (c == ")")
        if depth <= 1:
            kept.append(c)
    return "".join(kept)


@functools.cache
def _named_tuple(name: str, fields: tuple[str, ...]) -> Any:
    return collections.namedtuple(name, fields)


def _make_dict(_: Interpreter, node: Any, args: list[Any], env: Env) -> list[Any]:
    return [dict(zip(args[::2], args[1::2], strict=True))]


def _unpack(_: Interpreter, node: Any, args: list[Any], env: Env) -> list[Any]:
    return list(args[0])


def _index(_: Interpreter, node: Any, args: list[Any], env: Env) -> list[Any]:
    return [args[0][args[1]]]


def _slice_tuple(_: Interpreter, node: Any, args: list[Any], env: Env) -> list[Any]:
    return [args[0][node.i("beg") : node.i("end")]]


def _make_nothing(_: Interpreter, node: Any, args: list[Any], env: Env) -> list[Any]:
    return [None] * node.outputsSize()


def _raise(_: Interpreter, node: Any, args: list[Any], env: Env) -> list[Any]:
    raise torch.jit.Error(str(args[0]))


def _is_instance(_: Interpreter, node: Any, args: list[Any], env: Env) -> list[Any]:
    return [any(_matches(args[0], kind) for kind in node.tys("types"))]


_KINDS: dict[str, Any] = {
    "TensorType": torch.Tensor,
    "IntType": (int, torch.SymInt),
    "FloatType": (float, torch.SymFloat),
    "BoolType": (bool, torch.SymBool),
    "StringType": str,
    "NoneType": type(None),
    "ListType": list,
    "DictType": dict,
    "TupleType": tuple,
}


def _matches(value: object, kind: Any) -> bool:
    name = kind.kind()
    if name == "OptionalType":
        return value is None or _matches(value, kind.getElementType())
    if name not in _KINDS:
        raise UnsupportedError(
            f"isinstance of {kind.annotation_str} in TorchScript", where=source.locate_user_line()
        )
    is_bool = isinstance(value, (bool, torch.SymBool))
    return isinstance(value, _KINDS[name]) and (name == "BoolType" or not is_bool)


Step = Callable[[Interpreter, Any, list[Any], Env], Sequence[Any]]
_STEPS: dict[str, Step] = {
    "prim::Constant": _read_constant,
    "prim::If": Interpreter._branch,
    "prim::Loop": Interpreter._loop,
    "prim::GetAttr": Interpreter._read_attribute,
    "prim::SetAttr": Interpreter._write_attribute,
    "prim::CallMethod": Interpreter._call_method,
    "prim::CallFunction": Interpreter._call_function,
    "prim::PythonOp": Interpreter._call_python,
    "prim::fork": Interpreter._fork,
    "prim::ListConstruct": _make_list,
    "prim::TupleConstruct": _make_tuple,
    "prim::DictConstruct": _make_dict,
    "prim::ListUnpack": _unpack,
    "prim::TupleUnpack": _unpack,
    "prim::TupleIndex": _index,
    "prim::TupleSlice": _slice_tuple,
    "prim::Uninitialized": _make_nothing,
    "prim::RaiseException": _raise,
    "prim::isinstance": _is_instance,
}


def _ask(condition: Any, if_true: str | None, if_false: str | None) -> bool:
    """A truth, of which one or the other makes the program raise."""
    message = if_true if if_false is None else if_false
    raises = None if message is None else source.Raise(message is if_true, message)
    source.running.raises = raises
    try:
        return bool(condition)
    finally:
        source.running.raises = None


def _find_message(block: Any) -> str | None:
    """What a block raises that does nothing else."""
    nodes = list(block.nodes())
    if not nodes or nodes[-1].kind() != "prim::RaiseException":
        return None
    text = nodes[-1].inputsAt(0).toIValue()
    return text if isinstance(text, str) else "an assertion of TorchScript fails"


def _refuse_change(what: str, fix: str | None = None) -> UnsupportedError:
    return UnsupportedError(
        f"TorchScript {what}, and its state cannot be restored after the capture",
        where=source.locate_user_line(),
        fix=fix or "use the Python module or function that was scripted",
    )


# Operators of torch


@functools.cache
def _read_schema(text: str) -> Any:
    return None if text == "(no schema)" else parse_schema(text)


def _find_operator(schema: Any) -> Any:
    if schema is None:
        return None
    library, _, name = schema.name.partition("::")
    packet = getattr(getattr(torch.ops, library), name, None)
    return getattr(packet, schema.overload_name or "default", None)


def _inline_call(node: Any) -> Any:
    """The graph of a function that a node calls; nothing else tells it."""
    function, *operands = node.inputs()
    graph = Graph()
    called = graph.insertNode(graph.createClone(function.node(), lambda v: v)).output()
    inputs = {function.debugName(): called}
    for value in operands:
        inputs[value.debugName()] = graph.addInput()
        inputs[value.debugName()].setType(value.type())
    call = graph.insertNode(graph.createClone(node, lambda v: inputs[v.debugName()]))
    graph.registerOutput(call.output())
    jit_pass_inline(graph)
    return graph


# Arguments


def read_signature(schema: Any, *, is_method: bool) -> inspect.Signature:
    """The signature of a scripted function, or of a method without its self."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    arguments = schema.arguments[1:] if is_method else schema.arguments
    return inspect.Signature(
        [
            inspect.Parameter(
                a.name,
                kind,
                default=a.default_value if a.has_default_value() else inspect.Parameter.empty,
            )
            for a in arguments
        ]
    )


def _bind(schema: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    bound = read_signature(schema, is_method=False).bind(*args, **kwargs)
    bound.apply_defaults()
    values = [bound.arguments[a.name] for a in schema.arguments]
    return [_convert(x, a.type) for x, a in zip(values, schema.arguments, strict=True)]


def _convert(value: Any, kind: Any) -> Any:
    """A value as the interpreter of C++ takes it: containers are copied."""
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, list) or (isinstance(value, tuple) and "List" in kind.annotation_str):
        return list(value)
    return operators.coerce(kind.annotation_str, value)


# Lines of the source


@contextmanager
def _set_line(line: source.Location | None) -> Iterator[None]:
    """While this lasts, a line of the user's is running that Python does not know of."""
    before, source.running.line = source.running.line, line
    try:
        yield
    except Exception as error:
        vars(error).setdefault("_script_line", line)
        raise
    finally:
        source.running.line = before


def _find_line(node: Any) -> source.Location | None:
    """The user's line that a node was made from."""
    place = _read_range(node.sourceRange())
    return source.Location(*place, "TorchScript", source.running.module) if place else None


_SCRIPTED = re.compile(r'  File "(.+)", line (\d+)')
_TRACED = re.compile(r"^(.+)\((\d+)\): \S+$", re.MULTILINE)


@functools.cache
def _read_range(text: str) -> tuple[str, int] | None:
    for file, line in (*_SCRIPTED.findall(text), *_TRACED.findall(text)):
        if source.is_user_path(file) and not file.startswith("code/"):
            return file, int(line)
    return None
