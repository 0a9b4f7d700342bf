"""Hostile but plausible models, inputs and programs, through every way to capture one.

The outcome is right by eager, an error of ours, or the exception that eager raises too: never a raw
exception from inside of graphport, and never the user's class for what the user did not raise.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import io
import math
import threading
import types
import typing
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import _pytree as pytree

import graphport as gp
from graphport.errors import ExportError, ForwardError, InternalError

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
Case = Callable[[], tuple[Any, tuple[Any, ...]]]
CASES: dict[str, Case] = {}


class Holder(nn.Module):
    """A module with an attribute, and a forward that may use it."""

    def __init__(self, held: Any, run: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.held = held
        self.run = run

    def forward(self, x: torch.Tensor) -> Any:
        return x + 1 if self.run is None else self.run(self.held, x)


# Objects that refuse to be looked at


def no(what: str) -> Callable[..., Any]:
    def refuse(*args: Any) -> Any:
        raise NotImplementedError(what)

    return refuse


def refusing(base: type, *names: str) -> type:
    return type(f"{base.__name__}_{names[0].strip('_')}", (base,), {n: no(n) for n in names})


CONTAINERS = {
    "tuple without len": lambda: refusing(tuple, "__len__")((1, 2)),
    "tuple without iter": lambda: refusing(tuple, "__iter__")((1, 2)),
    "list without len": lambda: refusing(list, "__len__", "__iter__")([1]),
    "list without bool": lambda: refusing(list, "__bool__")([1]),
    "dict without len": lambda: refusing(dict, "__len__")(a=1),
    "dict without items": lambda: refusing(dict, "items", "values", "keys", "__iter__")(a=1),
    "set without iter": lambda: refusing(set, "__iter__")({1}),
    "deque without len": lambda: refusing(collections.deque, "__len__", "__iter__")([1]),
}
OBJECTS = {
    f"object without {name.strip('_')}": lambda name=name: refusing(object, name)()
    for name in ("__eq__", "__bool__", "__hash__", "__repr__", "__getattr__", "__len__", "__iter__")
}
PROPERTIES = {
    f"object without {name.strip('_')}": lambda name=name: type(
        "Refusing", (), {name: property(no(name))}
    )()
    for name in ("__class__", "__dict__")
}


def closing_over(held: Any) -> Callable[..., Any]:
    return lambda x: x + 1 if held is not None else x


def with_global(held: Any) -> Callable[..., Any]:
    space = {"held": held}
    exec("def f(x):\n    return x + 1 if held is not None else x", space)
    return space["f"]


for name, make in {**CONTAINERS, **OBJECTS}.items():
    CASES[f"attribute: {name}"] = lambda make=make: (Holder(make()), (X,))
for name, make in {**CONTAINERS, **OBJECTS, **PROPERTIES}.items():
    CASES[f"list attribute: {name}"] = lambda make=make: (Holder([make()]), (X,))
    CASES[f"closure: {name}"] = lambda make=make: (closing_over(make()), (X,))
    CASES[f"global: {name}"] = lambda make=make: (with_global(make()), (X,))
for name, make in {**OBJECTS, **PROPERTIES}.items():
    CASES[f"input: {name}"] = lambda make=make: (lambda x, y: x + 1, (X, make()))
    CASES[f"output: {name}"] = lambda make=make: ((lambda y: lambda x: (x, y))(make()), (X,))
    CASES[f"assigned: {name}"] = lambda make=make: (Assigns(make), (X,))


class Assigns(nn.Module):
    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__()
        self.make, self.made = make, []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.made.append(self.make())
        return x + 1


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.register_buffer("shift", torch.ones(4))
        self.register_buffer("hidden", torch.ones(4), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.lin(x)) + self.shift * self.hidden


class Parent(nn.Module):
    def __init__(self, child: Any) -> None:
        super().__init__()
        self.child = child

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.child(x) + 1


class NoAttributes(Layer):
    def __getattr__(self, name: str) -> Any:
        if name in ("lin", "shift", "hidden"):
            return super().__getattr__(name)
        raise NotImplementedError(name)


class Uninitialised(nn.Module):
    def __init__(self) -> None:
        pass

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


MODULES: dict[str, Callable[[], nn.Module]] = {
    f"module without {name.strip('_')}": lambda name=name: refusing(Layer, name)()
    for name in (
        "state_dict",
        "named_parameters",
        "named_buffers",
        "named_modules",
        "parameters",
        "modules",
        "__hash__",
        "__eq__",
        "__repr__",
        "__bool__",
        "__len__",
        "__iter__",
        "__dir__",
        "train",
    )
}
MODULES |= {
    "module without attributes": NoAttributes,
    "module without init": Uninitialised,
    "module with properties": type("P", (Layer,), {"weird": property(no("weird"))}),
    "module whose forward is a number": type("F", (nn.Module,), {"forward": 5}),
    "module without forward": type("N", (nn.Module,), {}),
    "module with a call of its own": type("C", (nn.Module,), {"__call__": lambda self, x: x + 1}),
}
for name, make in MODULES.items():
    CASES[name] = lambda make=make: (make(), (X,))
    CASES[f"child: {name}"] = lambda make=make: (Parent(make()), (X,))


# Classes of tensors


class Quantised(torch.Tensor):
    """As torchao's: int8 numbers and a scale."""

    @staticmethod
    def __new__(cls, numbers: torch.Tensor, scale: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, numbers.shape, dtype=scale.dtype)

    def __init__(self, numbers: torch.Tensor, scale: torch.Tensor) -> None:
        self.numbers, self.scale = numbers, scale

    def __tensor_flatten__(self) -> Any:
        return ["numbers", "scale"], None

    def dequantize(self) -> torch.Tensor:
        return self.numbers.to(self.scale.dtype) * self.scale

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, op: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        if op is torch.ops.aten.detach.default:
            return args[0]
        args, kwargs = pytree.tree_map_only(cls, cls.dequantize, (args, kwargs or {}))
        return op(*args, **kwargs)


def quantised() -> Quantised:
    return Quantised(torch.arange(16, dtype=torch.int8).reshape(4, 4), torch.full((4, 1), 0.5))


def with_weight(t: torch.Tensor) -> nn.Module:
    module = nn.Linear(4, 4)
    module.weight = nn.Parameter(t, requires_grad=False)
    return module


def with_buffer(t: torch.Tensor) -> nn.Module:
    module = Holder(None)
    module.run = lambda held, x: torch.mm(x, module.get_buffer("w"))
    module.register_buffer("w", t)
    return module


class Plain(torch.Tensor):
    pass


class Renaming(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, kinds, args, kwargs)


def nested(layout: torch.layout) -> torch.Tensor:
    return torch.nested.nested_tensor([X[:2], X], layout=layout)


ODD_TENSORS: dict[str, Callable[[], torch.Tensor]] = {
    "quantised subclass": quantised,
    "two tensors": lambda: TwoTensor(torch.ones(4, 4), torch.ones(4, 4)),
    "masked": lambda: torch.masked.masked_tensor(torch.ones(4, 4), torch.ones(4, 4) > 0),
    "csr": lambda: torch.eye(4).to_sparse_csr(),
    "csc": lambda: torch.eye(4).to_sparse_csc(),
    "coo": lambda: torch.eye(4).to_sparse(),
    "mkldnn": lambda: torch.eye(4).to_mkldnn(),
    "nested": lambda: nested(torch.strided),
    "jagged": lambda: nested(torch.jagged),
    "plain subclass": lambda: torch.eye(4).as_subclass(Plain),
    "uninitialised": nn.parameter.UninitializedParameter,
}
for name, make in ODD_TENSORS.items():
    CASES[f"input: {name}"] = lambda make=make: (lambda x: x + 1, (make(),))
    CASES[f"in a dict: {name}"] = lambda make=make: (lambda d: d["t"] + 1, ({"t": make()},))
    CASES[f"constant: {name}"] = lambda make=make: (Holder(make(), lambda t, x: x @ t), (X,))
    CASES[f"constant in a list: {name}"] = lambda make=make: (
        Holder([make()], lambda t, x: x @ t[0]),
        (X,),
    )
    CASES[f"returned: {name}"] = lambda make=make: (lambda x: (x, make()), (X,))
    CASES[f"buffer: {name}"] = lambda make=make: (with_buffer(make()), (X,))
    if name != "uninitialised":
        CASES[f"parameter: {name}"] = lambda make=make: (with_weight(make()), (X,))

MADE: dict[str, Callable[[torch.Tensor], Any]] = {
    "two tensors": lambda x: (TwoTensor(x, x) + 1).a,
    "two tensors, returned": lambda x: TwoTensor(x, x) + 1,
    "quantised": lambda x: x @ Quantised(torch.ones(4, 4, dtype=torch.int8), x[0, :, None]),
    "linear of quantised": lambda x: nn.functional.linear(
        x, Quantised(torch.ones(4, 4, dtype=torch.int8), x[0, :, None])
    ),
    "masked": lambda x: torch.masked.masked_tensor(x, x > 0).sum(),
    "subclass": lambda x: x.as_subclass(Plain) + 1,
    "subclass with functions": lambda x: x + torch.ones(4).as_subclass(Renaming),
    "coo": lambda x: torch.mm(x.to_sparse(), torch.ones(4, 2)),
    "csr": lambda x: torch.mm(x.to_sparse_csr(), torch.ones(4, 2)),
    "coo by constructor": lambda x: torch.sparse_coo_tensor(
        torch.tensor([[0, 1], [1, 0]]), x[0, :2], (2, 2)
    ).to_dense(),
    "csr by constructor": lambda x: torch.sparse_csr_tensor(
        torch.tensor([0, 1, 2]), torch.tensor([0, 1]), x[0, :2], (2, 2)
    ).to_dense(),
    "mkldnn": lambda x: x.to_mkldnn(),
    "nested": lambda x: torch.nested.as_nested_tensor([x, x[:2]]).to_padded_tensor(0.0),
    "jagged": lambda x: torch.nested.as_nested_tensor([x, x[:2]], layout=torch.jagged).values(),
    "quantised by torch": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize(),
    "float4": lambda x: x.to(torch.uint8).view(torch.float4_e2m1fn_x2).view(torch.uint8),
    "complex32": lambda x: torch.complex(x, x).to(torch.complex32).real,
    "negative view": lambda x: torch.complex(x, x).conj().imag * 2,
    "conjugate": lambda x: torch.complex(x, x).conj()[1:].real,
    "lazy": lambda x: nn.LazyLinear(3)(x).shape,
}
for name, run in MADE.items():
    CASES[f"made: {name}"] = lambda run=run: (run, (X,))


# Other inputs, attributes and results


class Colour(enum.Enum):
    RED = 1


class Number(enum.IntEnum):
    ONE = 1


class Word(enum.StrEnum):
    A = "a"


@dataclasses.dataclass
class Record:
    field: Any


class Pair(typing.NamedTuple):
    a: torch.Tensor
    b: torch.Tensor


def holding_itself() -> list[Any]:
    found: list[Any] = [X]
    found.append(found)
    return found


def nested_deeply() -> list[Any]:
    found: Any = X
    for _ in range(3000):
        found = [found]
    return found


def in_inference_mode() -> torch.Tensor:
    with torch.inference_mode():
        return X + 1


VALUES: dict[str, Callable[[], Any]] = {
    "quantised": lambda: torch.quantize_per_tensor(X, 0.1, 0, torch.qint8),
    "meta": lambda: X.to("meta"),
    "complex32": lambda: torch.complex(X, X).to(torch.complex32),
    "bits": lambda: torch.zeros(3, 4, dtype=torch.uint8).view(torch.bits8),
    "float4": lambda: torch.zeros(3, 4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
    "of a graph": lambda: X.clone().requires_grad_() * 2,
    "inference tensor": in_inference_mode,
    "conjugate": lambda: torch.complex(X, X).conj(),
    "negative": lambda: torch.complex(X, X).conj().imag,
    "scalar tensor": lambda: torch.tensor(1.0),
    "empty": lambda: torch.empty(0, 3),
    "expanded": lambda: torch.ones(1, 4).expand(3, 4),
    "overlapping": lambda: torch.ones(6).as_strided((3, 4), (1, 1)),
    "parameter": lambda: nn.Parameter(X),
    "array": lambda: X.numpy(),
    "numpy float": lambda: np.float32(1),
    "numpy int": lambda: np.int64(1),
    "numpy text": lambda: np.str_("a"),
    "enum": lambda: Colour.RED,
    "int enum": lambda: Number.ONE,
    "text enum": lambda: Word.A,
    "dataclass": lambda: Record(X),
    "set": lambda: {1},
    "generator": lambda: (x for x in [X]),
    "module": lambda: nn.Linear(2, 2),
    "dtype": lambda: torch.float32,
    "device": lambda: torch.device("cpu"),
    "random generator": torch.Generator,
    "function": lambda: torch.relu,
    "range": lambda: range(3),
    "slice": lambda: slice(0, 2),
    "ellipsis": lambda: ...,
    "bytes": lambda: b"x",
    "not implemented": lambda: NotImplemented,
    "type": lambda: int,
    "ordered": lambda: collections.OrderedDict(a=X),
    "default": lambda: collections.defaultdict(list, a=X),
    "deque": lambda: collections.deque([X]),
    "counter": lambda: collections.Counter("aab"),
    "proxy": lambda: types.MappingProxyType({"a": X}),
    "text": lambda: "x",
    "complex": lambda: 1j,
    "nan": lambda: math.nan,
    "infinity": lambda: math.inf,
    "large": lambda: 2**70,
    "size": lambda: X.shape,
    "pair": lambda: Pair(X, X),
    "storage": lambda: X.untyped_storage(),
    "result of max": lambda: X.max(0),
    "keys of numbers": lambda: {1: X, 2: X},
    "keys of tuples": lambda: {(1, 2): X},
    "no identifiers": lambda: {"a b": X, "": X},
    "surrogate": lambda: "\ud800",
    "own int": lambda: type("I", (int,), {})(3),
    "own text": lambda: type("S", (str,), {})("a"),
    "own dict": lambda: type("D", (dict,), {})(a=X),
    "own tuple": lambda: type("T", (tuple,), {})([X]),
    "holding itself": holding_itself,
    "nested deeply": nested_deeply,
    "lock": threading.Lock,
    "exception": lambda: ValueError("x"),
}
for name, make in VALUES.items():
    CASES[f"input: {name}"] = lambda make=make: (
        lambda x, y: (x + 1, y * 1 if isinstance(y, torch.Tensor) else x),
        (X, make()),
    )
    CASES[f"attribute: {name}"] = lambda make=make: (
        Holder(make(), lambda y, x: y * 1 if isinstance(y, torch.Tensor) else x + 1),
        (X,),
    )
    CASES[f"returned: {name}"] = lambda make=make: ((lambda y: lambda x: (x + 1, y))(make()), (X,))


# What programs do


def program(run: Callable[..., Any]) -> Callable[..., Any]:
    CASES[f"program: {run.__name__}"] = lambda: (run, (X,))
    return run


RAISED = {
    "value": ValueError("mine"),
    "key": KeyError(),
    "stop": StopIteration(),
    "assert": AssertionError(),
    "attribute": AttributeError("mine"),
    "name": NameError("mine"),
    "memory": MemoryError(),
    "recursion": RecursionError("mine"),
    "group": ExceptionGroup("mine", [ValueError("a")]),
    "runtime": RuntimeError("mine"),
    "import": ImportError("mine"),
    "syntax": SyntaxError("mine"),
    "decode": UnicodeDecodeError("utf8", b"", 0, 1, "mine"),
    "warning": UserWarning("mine"),
    "without text": refusing(Exception, "__str__")(),
    "exit": SystemExit(3),
    "interrupt": KeyboardInterrupt(),
    "base": BaseException("mine"),
}


def raising(error: BaseException) -> Callable[..., Any]:
    def run(x: torch.Tensor) -> Any:
        raise error

    return run


for name, error in RAISED.items():
    CASES[f"raises: {name}"] = lambda error=error: (raising(error), (X,))

EXPRESSIONS = """
undefined_name
x.nothing
{}[x.shape[0]]
x / (1 // 0)
x @ x
x[10]
x["a"]
x[1.5]
torch.add(x, "a")
torch.add(x)
torch.sum(x, dimm=1)
torch.zeros(-1)
torch.ops.nosuch.op(x)
torch.tensor(["a"])
torch.tensor([[1], [2, 3]])
x + 2**70
nn.Linear(2, 2)
(x + i for i in range(3))
{x}
{x: x + 1}
lambda: x
[x.shape, x.numel(), x.shape[0] * 1.5, x.shape[0] > 2, x.dtype, x.device, x.layout]
[x.stride(), x.storage_offset(), x.is_contiguous()]
[str(x), repr(x), f"{x}"] and x + 1
"%f" % x.sum()
x + torch.from_numpy(x.numpy())
x + torch.from_numpy(np.zeros(x.shape, dtype="float32"))
torch.tensor(np.array(x))
np.sin(x)
torch.tensor(x.tolist())
x + x.data_ptr() % 1
x + x.untyped_storage().nbytes()
pickle.loads(pickle.dumps(x)) + 1
copy.deepcopy(x) + 1
copy.copy(x) + 1
torch.save(x, io.BytesIO())
torch.from_dlpack(x) + 1
x.clone().apply_(lambda v: v + 1)
x.clone().map_(x, lambda a, b: a + b)
x + int(x.sum())
x + 1 if x.sum() > 0 else x
sorted(x[0])[0]
max(x[0])
round(x.sum())
[1, 2, 3][x.sum().long()]
x + 1 if 3 in x else x
torch.equal(x, x)
torch.equal(x, x[:2])
x + 1 if torch.equal(x, x.flatten()) else x + 2
torch.autograd.grad((x.clone().requires_grad_() * 2).sum(), x)
torch.func.grad(lambda r: (r * r).sum())(x)
torch.func.jvp(torch.sin, (x,), (x,))
torch.vmap(lambda r: r * 2)(x)
torch.jit.script(scripted)(x)
torch.jit.trace(scripted, (x,))(x)
torch.compile(lambda y: y + 1, backend="eager")(x)
torch.fx.symbolic_trace(lambda y: y + 1)(x)
gp.export(lambda y: y + 1, (torch.ones(2),)).module()(x[0, :2])
gp.export(lambda y: y + 1, (x,)).module()(x)
torch.utils.checkpoint.checkpoint(lambda y: y * 2, x, use_reentrant=False)
torch.randn(4, generator=torch.Generator().manual_seed(0)) + x
torch.Stream() and x + 1
x.cuda()
x.to("meta")
x.pin_memory()
x.share_memory_()
x.clone().resize_(2, 2)
torch.empty(0).set_(x)
torch.ones(4, device="meta") + x[0]
nn.Parameter(x) + 1
x @ nn.Parameter(torch.ones(4, 4))
list(ThreadPoolExecutor(1).map(lambda i: x + i, range(2)))
x + 1 if hasattr(x, "foo") else x + 2
{x: 1, id(x): 2}[x] + x
eval("x + 1")
x.numpy
nn.utils.rnn.pack_sequence([x, x[:2]]).data
""".strip().splitlines()


def scripted(x):
    return torch.relu(x) * 2


for text in EXPRESSIONS:
    CASES[f"program: {text}"] = lambda text=text: (eval(f"lambda x: {text}", globals()), (X,))


@program
def recurses(x: torch.Tensor) -> Any:
    return recurses(x + 1)


@program
def yields(x: torch.Tensor) -> Iterator[Any]:
    yield x + 1


@program
def differentiates(x: torch.Tensor) -> Any:
    y = x.clone().requires_grad_()
    (y * y).sum().backward()
    return y.grad


@program
def hooks(x: torch.Tensor) -> Any:
    y = (x * 1).requires_grad_()
    y.register_hook(lambda g: g * 2)
    return y + 1


@program
def differentiates_forward(x: torch.Tensor) -> Any:
    from torch.autograd import forward_ad

    with forward_ad.dual_level():
        return forward_ad.unpack_dual(forward_ad.make_dual(x, x) * 2).tangent


@program
def casts(x: torch.Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return x @ x.T


@program
def infers(x: torch.Tensor) -> Any:
    with torch.inference_mode():
        return x + 1


@program
def changes_the_default_dtype(x: torch.Tensor) -> Any:
    torch.set_default_dtype(torch.float64)
    try:
        return x + torch.ones(4)
    finally:
        torch.set_default_dtype(torch.float32)


@program
def leaves_another_default_dtype(x: torch.Tensor) -> Any:
    torch.set_default_dtype(torch.float64)
    return x + torch.ones(4)


@program
def assigns_a_gradient(x: torch.Tensor) -> Any:
    y = x * 1
    y.grad = x
    return y.grad + 1


@program
def steps(x: torch.Tensor) -> Any:
    p = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([p], 0.1)
    (p * 2).sum().backward()
    optimizer.step()
    return x + p


@program
def loads(x: torch.Tensor) -> Any:
    layer = nn.Linear(4, 4)
    layer.load_state_dict({"weight": torch.ones(4, 4), "bias": torch.zeros(4)})
    return layer(x)


# Layers of torch's


def traced() -> Any:
    return torch.jit.trace(Layer(), (X,))


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(4, 5, batch_first=True)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Any:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, True, False)
        return nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], True)[0]


def with_script_method() -> Any:
    class Scripted(torch.jit.ScriptModule):
        @torch.jit.script_method
        def forward(self, x):
            return torch.relu(x)

    return Scripted()


def flexible(x: torch.Tensor) -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention(x, x, x)


CASES |= {
    "traced child": lambda: (Parent(traced()), (X,)),
    "traced function": lambda: (torch.jit.trace(scripted, (X,)), (X,)),
    "scripted model": lambda: (torch.jit.script(Layer()), (X,)),
    "scripted child": lambda: (Parent(torch.jit.script(Layer())), (X,)),
    "frozen child": lambda: (Parent(torch.jit.freeze(torch.jit.script(Layer().eval()))), (X,)),
    "script method": lambda: (Parent(with_script_method()), (X,)),
    "scripted function": lambda: ((lambda f: lambda x: f(x))(torch.jit.script(scripted)), (X,)),
    "packed": lambda: (Packed(), (torch.randn(3, 6, 4), torch.tensor([6, 2, 3]))),
    "flex_attention": lambda: (flexible, (torch.randn(1, 2, 8, 16),)),
    "arguments as a pair": lambda: (lambda a, b: a + b, Pair(X, X)),
}


# How they end


def save_and_load(model: Any, args: Any) -> Any:
    buffer = io.BytesIO()
    gp.save(gp.export(model, args), buffer)
    buffer.seek(0)
    return gp.load(buffer).module()(*args)


ROUTES: dict[str, Callable[[Any, Any], Any]] = {
    "export": lambda model, args: gp.export(model, args).module()(*args),
    "save": save_and_load,
    "strict": lambda model, args: gp.export(model, args, strict=True).module()(*args),
    "training": lambda model, args: gp.export(model, args, training=True).module()(*args),
    "draft": lambda model, args: gp.draft_export(model, args).module()(*args),
    "onnx": lambda model, args: gp.onnx.export(model, args)(*args),
}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    default = torch.get_default_dtype()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch.set_default_dtype(default)


def outcome_of(run: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    torch.manual_seed(1)
    try:
        return run(), None
    except BaseException as error:  # noqa: BLE001  programs here raise anything
        return None, error
    finally:
        torch.set_default_dtype(torch.float32)


def require_sound(case: Case, route: str) -> None:
    torch.manual_seed(0)
    model, args = case()
    expected, raised = outcome_of(lambda: model(*args))
    torch.manual_seed(0)
    model, args = case()
    got, error = outcome_of(lambda: ROUTES[route](model, args))
    if error is None:
        assert raised is None, f"accepted, where eager raises {type(raised)}"
        require_close(got, expected)
    elif isinstance(error, ExportError):
        assert not isinstance(error, InternalError), error
        assert raised is not None or not isinstance(error, ForwardError), error
    else:
        assert raised is not None, f"{type(error).__name__}: {error}"
        assert type(error) is type(raised)


def require_close(got: Any, expected: Any) -> None:
    found, wanted = pytree.tree_leaves(got), pytree.tree_leaves(expected)
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        if isinstance(b, torch.Tensor) and not b.is_meta and b.dtype not in UNCOMPARED:
            b = b.as_subclass(torch.Tensor)
            torch.testing.assert_close(a.as_subclass(torch.Tensor), b, equal_nan=True)
        elif isinstance(b, torch.Tensor):
            assert (a.shape, a.dtype, a.is_meta) == (b.shape, b.dtype, b.is_meta)
        else:
            assert a is b or a == b or a != a


UNCOMPARED = (torch.bits8, torch.float4_e2m1fn_x2)


@pytest.mark.parametrize("name", CASES)
def test_exported(name: str) -> None:
    require_sound(CASES[name], "export")


DEVICES = ('program: x.to("meta")', 'program: torch.ones(4, device="meta") + x[0]')
"""An ONNX file has none: what is on the meta device in eager is computed."""
OTHERS = [
    (name, route)
    for name in CASES
    for route in ROUTES
    if route != "export" and (route != "onnx" or name not in DEVICES)
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "route"), OTHERS)
def test_by_other_routes(name: str, route: str) -> None:
    require_sound(CASES[name], route)


@pytest.mark.parametrize(("name", "route"), OTHERS[::19])
def test_sample_of_other_routes(name: str, route: str) -> None:
    require_sound(CASES[name], route)
