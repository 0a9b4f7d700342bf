"""Errors: what happened, where in the user's code, what to write instead. Golden, in full.

After a failed export everything is as it was before.
"""
# ruff: noqa: E501  messages stand here as they are shown

from __future__ import annotations

import pickle
import traceback

import numpy as np
import pytest
import torch
from torch import nn

import graphport as gp
from tests.capture import errors
from tests.capture.errors import golden


def raised(fn, *args, **options):
    with pytest.raises(gp.errors.ExportError) as caught:
        fn(*args, **options)
    return caught.value


def test_errors_go_to_other_processes():
    """A pool of processes sends them; one that cannot be unpickled breaks the pool."""
    x = torch.ones(2, 2)
    relu = {"aten::relu": lambda b, self: b.Neg(self)}
    for error in (
        raised(gp.onnx.export, torch.linalg.eigvals, (x,)),
        raised(gp.onnx.export, torch.relu, (x,), custom_lowerings=relu, verify=True),
        raised(gp.export, lambda x: {}["key"], (x,)),
        raised(
            gp.export,
            lambda x: x + 1 if x.shape[0] == 2 else x,
            (x,),
            dynamic_shapes=({0: gp.Dim("n")},),
        ),
        gp.errors.PipelineError("what", where="here", stage=3),
        gp.errors.ValidationError("what", counterexample={"s": 1}),
    ):
        again = pickle.loads(pickle.dumps(error))
        assert str(again) == str(error) and again.code == error.code
        assert isinstance(again, type(error).__mro__[0 if error.code != "GP150" else 1])
        assert (again.what, again.fix) == (error.what, error.fix)
    assert pickle.loads(pickle.dumps(gp.errors.PipelineError("what", stage=3))).stage == 3


class Leaf(nn.Module):
    """Runs a function two modules deep, so that errors have a module path to name."""

    def __init__(self, fn):
        super().__init__()
        self.fn = fn
        self.steps = 0

    def forward(self, *args):
        self.steps += 1
        return self.fn(*args)


class Model(nn.Module):
    def __init__(self, fn):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.block = nn.Sequential(Leaf(fn))

    def forward(self, *args):
        return self.block(*args)


def x() -> torch.Tensor:
    return torch.arange(12.0).reshape(3, 4)


def picture(model: nn.Module) -> tuple:
    """What must not change."""
    return (
        {k: v.clone() for k, v in model.state_dict().items()}.__repr__(),
        [sorted((k, id(v)) for k, v in vars(m).items()) for m in model.modules()],
        [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()],
        [m.training for m in model.modules()],
        torch.get_rng_state().tolist(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch.compiler.is_compiling(),
        torch.compiler.is_exporting(),
        nn.Module.__call__,
        torch._C._len_torch_dispatch_stack(),
        torch._C._len_torch_function_stack(),
    )


def text_of(error: Exception) -> str:
    return errors.text_of(error, __name__)


def failing(model, args=None, **options) -> Exception:
    """The error that an export raises; checks that nothing else came of it."""
    args = (x(),) if args is None else args
    is_module = isinstance(model, nn.Module)
    before = picture(model) if is_module else None
    with pytest.raises(gp.errors.ExportError) as caught:
        gp.export(model, args, **options)
    if is_module:
        assert picture(model) == before
    return caught.value


# Python that needs data


def branch(v):
    if v.sum() > 0:
        return v
    return -v


def loop(v):
    while v.sum() > 0:
        v = v - 1
    return v


def negation(v):
    return v if not v.any() else -v


def member(v):
    return v[0, 0] in [1.0, 2.0]


def numpy_array(v):
    return torch.from_numpy(v.numpy() + 1)


def to_int(v):
    return [v] * int(v.sum())


def to_float(v):
    return v * 2 if float(v.sum()) > 1 else v


def count(v):
    return [v for _ in range(v.sum().long())]


def listed(v):
    return 1 if v.tolist()[0][0] > 0 else 0


def pointer(v):
    return v.data_ptr()


def same(v):
    return torch.equal(v, v + 1)


# Programs that fail


class Refused(Exception):
    def __init__(self, code, reason):
        super().__init__(code, reason)
        self.code = code


def own(v):
    v.sin()
    raise Refused(7, "because")


def missing_key(v):
    return {"a": v}["b"]


def shapes(v):
    return v @ v


def kernel(v):
    return nn.functional.linear(v, torch.ones(2, 7))


def dims(v):
    return v.sum(5)


def unknown_attribute(v):
    return v.no_such_thing


def cuda(v):
    return v.to("cuda")


def cuda_factory(v):
    return v + torch.zeros(3, device="cuda")


def resized(v):
    return (v * 1).resize_(2, 2)


def set_data(v):
    v.data = v + 1
    return v


class Opaque:
    pass


def opaque(v):
    return {"result": Opaque()}


@torch.library.custom_op("gp_errors::nothing", mutates_args=())
def nothing(v: torch.Tensor) -> torch.Tensor:
    return v + 1


torch.library.define("gp_errors::old", "(Tensor v) -> Tensor")
torch.library.impl("gp_errors::old", "cpu", lambda v: v + 1)


def custom(v):
    return nothing(v)


def custom_old(v):
    return torch.ops.gp_errors.old(v)


GOLDEN = {
    branch: """
        GP120 Could not guard on data-dependent expression: the truth value of a tensor is not known while the program is captured, so Python cannot branch on it
          at   test_errors.py:N in branch: if v.sum() > 0:      (block.0)
          fix  torch.cond(pred, true_fn, false_fn, (operands,)) keeps both branches
          fix  torch.where(pred, a, b) chooses element by element
    """,
    loop: """
        GP120 Could not guard on data-dependent expression: the truth value of a tensor is not known while the program is captured, so Python cannot branch on it
          at   test_errors.py:N in loop: while v.sum() > 0:      (block.0)
          fix  torch.cond(pred, true_fn, false_fn, (operands,)) keeps both branches
          fix  torch.where(pred, a, b) chooses element by element
    """,
    negation: """
        GP120 Could not guard on data-dependent expression: the truth value of a tensor is not known while the program is captured, so Python cannot branch on it
          at   test_errors.py:N in negation: return v if not v.any() else -v      (block.0)
          fix  torch.cond(pred, true_fn, false_fn, (operands,)) keeps both branches
          fix  torch.where(pred, a, b) chooses element by element
    """,
    member: """
        GP120 Could not guard on data-dependent expression: the truth value of a tensor is not known while the program is captured, so Python cannot branch on it
          at   test_errors.py:N in member: return v[0, 0] in [1.0, 2.0]      (block.0)
          fix  torch.cond(pred, true_fn, false_fn, (operands,)) keeps both branches
          fix  torch.where(pred, a, b) chooses element by element
    """,
    numpy_array: """
        GP120 .numpy() needs the data of a tensor, which capture does not know
          at   test_errors.py:N in numpy_array: return torch.from_numpy(v.numpy() + 1)      (block.0)
          fix  compute with torch functions, or move the numpy code into a torch.library.custom_op
    """,
    to_int: """
        GP120 Could not guard on data-dependent expression int(v.sum()): Python needs its value, and it depends on the data of a tensor
          at   test_errors.py:N in to_int: return [v] * int(v.sum())      (block.0)
          fix  keep it a tensor, or torch._check what the program needs to know of it
    """,
    to_float: """
        GP120 Could not guard on data-dependent expression float(v.sum()) > 1.0: the program branches on it, and it depends on the data of a tensor
          at   test_errors.py:N in to_float: return v * 2 if float(v.sum()) > 1 else v      (block.0)
          fix  n = float(v.sum()); torch._check(n > 1.0), and use n from there on
          fix  n = float(v.sum()); torch._check(torch.sym_not(n > 1.0)), and use n from there on
    """,
    count: """
        GP120 Could not guard on data-dependent expression: a Python int from a tensor needs its data, which capture does not know
          at   test_errors.py:N in count: return [v for _ in range(v.sum().long())]      (block.0)
          fix  x.item() gives a symbolic number, for sizes and for arithmetic
          fix  or go on with the tensor itself
    """,
    listed: """
        GP120 Could not guard on data-dependent expression v.tolist()[0][0] > 0.0: the program branches on it, and it depends on the data of a tensor
          at   test_errors.py:N in listed: return 1 if v.tolist()[0][0] > 0 else 0      (block.0)
          fix  n = v.tolist()[0][0]; torch._check(n > 0.0), and use n from there on
          fix  n = v.tolist()[0][0]; torch._check(torch.sym_not(n > 0.0)), and use n from there on
    """,
    pointer: """
        GP120 .data_ptr() accesses the memory of a tensor, which has none while it is captured
          at   test_errors.py:N in pointer: return v.data_ptr()      (block.0)
    """,
    same: """
        GP120 Could not guard on data-dependent expression: torch.equal compares data, which capture does not know
          at   test_errors.py:N in same: return torch.equal(v, v + 1)      (block.0)
          fix  (a == b).all() gives the answer as a tensor
    """,
    own: """
        GP150 Refused in the program: (7, 'because')
          at   test_errors.py:N in own: raise Refused(7, "because")      (block.0)
    """,
    missing_key: """
        GP150 KeyError in the program: 'b'
          at   test_errors.py:N in missing_key: return {"a": v}["b"]      (block.0)
    """,
    shapes: """
        GP140 matmul: inner sizes of float32[3, 4] and float32[3, 4] differ: mat1 and mat2 shapes cannot be multiplied
          at   test_errors.py:N in shapes: return v @ v      (block.0)
    """,
    kernel: """
        GP140 linear: inner sizes of float32[3, 4] and float32[2, 7] differ: mat1 and mat2 shapes cannot be multiplied
          at   test_errors.py:N in kernel: return nn.functional.linear(v, torch.ones(2, 7))      (block.0)
    """,
    dims: """
        GP150 IndexError in the program: Dimension out of range (expected to be in range of [-2, 1], but got 5)
          at   test_errors.py:N in dims: return v.sum(5)      (block.0)
    """,
    unknown_attribute: """
        GP150 AttributeError in the program: 'AbstractTensor' object has no attribute 'no_such_thing'
          at   test_errors.py:N in unknown_attribute: return v.no_such_thing      (block.0)
    """,
    cuda: """
        GP150 the program uses a device that is missing here: ...
          at   test_errors.py:N in cuda: return v.to("cuda")      (block.0)
          fix  x.to(y.device), torch.zeros(..., device=x.device): the device of what is at hand
    """,
    cuda_factory: """
        GP150 the program uses a device that is missing here: ...
          at   test_errors.py:N in cuda_factory: return v + torch.zeros(3, device="cuda")      (block.0)
          fix  x.to(y.device), torch.zeros(..., device=x.device): the device of what is at hand
    """,
    resized: """
        GP130 resize_() replaces the storage of a tensor, which a functional graph cannot express
          at   test_errors.py:N in resized: return (v * 1).resize_(2, 2)      (block.0)
          fix  make a new tensor instead, e.g. x = x.new_empty(size), or write to it with x.copy_(y)
    """,
    set_data: """
        GP130 assigning to .data replaces the storage of a tensor, which a functional graph cannot express
          at   test_errors.py:N in set_data: v.data = v + 1      (block.0)
          fix  write to the tensor instead: x.copy_(y)
    """,
    opaque: """
        GP101 output 0 is a test_errors.Opaque: outputs are tensors, numbers, strings, None, and containers of them
          at   test_errors.py:N in Model.forward: def forward(self, *args):
          fix  return tensors, or register the type with torch.utils._pytree
    """,
    custom: """
        GP200 gp_errors.nothing.default has no shape rule and no meta kernel, so its result cannot be described without running it
          at   test_errors.py:N in custom: return nothing(v)      (block.0)
          fix  register one: @torch.library.register_fake("gp_errors::nothing")
    """,
    custom_old: """
        GP200 gp_errors.old.default has no shape rule and no meta kernel, so its result cannot be described without running it
          at   test_errors.py:N in custom_old: return torch.ops.gp_errors.old(v)      (block.0)
          fix  register one: @torch.library.register_fake("gp_errors::old")
    """,
}


@pytest.mark.parametrize("fn", GOLDEN, ids=lambda f: f.__name__)
def test_golden(fn):
    assert text_of(failing(Model(fn))) == golden(GOLDEN[fn])


def plain(v):
    return v + 1


def one(v, *, k):
    return v * k


ARGUMENTS = [
    (
        3,
        (x(),),
        {},
        """
        GP101 expected an nn.Module or a callable, got int
          fix  gp.export(model, args) with an nn.Module or a function that takes tensors
    """,
    ),
    (
        Model,
        (x(),),
        {},
        """
        GP101 got the class Model, not an instance of it
          at   test_errors.py:N in Model.forward: def forward(self, *args):
          fix  gp.export(Model(...), ...)
    """,
    ),
    (
        Opaque,
        (),
        {},
        """
        GP101 got the class Opaque, not an instance of it
          fix  gp.export(Opaque(...), ...)
    """,
    ),
    (
        plain,
        x(),
        {},
        """
        GP101 args must be a tuple of the positional arguments, got Tensor
          fix  gp.export(model, args=(x,))
    """,
    ),
    (
        plain,
        [x()],
        {},
        """
        GP101 args must be a tuple of the positional arguments, got list
          fix  gp.export(model, args=tuple(...))
    """,
    ),
    (
        plain,
        (x(),),
        {"kwargs": [x()]},
        """
        GP101 kwargs must be a dict by parameter name, got list
    """,
    ),
    (
        plain,
        (),
        {},
        """
        GP101 the arguments do not fit plain(v): missing a required argument: 'v'
          at   test_errors.py:N in plain: def plain(v):
          fix  pass positional arguments as args=(...,) and keyword arguments as kwargs={...}
    """,
    ),
    (
        plain,
        (x(), x()),
        {},
        """
        GP101 the arguments do not fit plain(v): too many positional arguments
          at   test_errors.py:N in plain: def plain(v):
          fix  pass positional arguments as args=(...,) and keyword arguments as kwargs={...}
    """,
    ),
    (
        one,
        (x(),),
        {"kwargs": {"z": 1}},
        """
        GP101 the arguments do not fit one(v, *, k): missing a required argument: 'k'
          at   test_errors.py:N in one: def one(v, *, k):
          fix  pass positional arguments as args=(...,) and keyword arguments as kwargs={...}
    """,
    ),
    (
        plain,
        (np.zeros(3),),
        {},
        """
        GP101 Unsupported input type numpy.ndarray at *args[0]: inputs are tensors, numbers, strings, None, and containers of them
          fix  torch.from_numpy(...) or torch.tensor(...) for the input at *args[0]
    """,
    ),
    (
        plain,
        ({"a": [Opaque()]},),
        {},
        """
        GP101 Unsupported input type test_errors.Opaque at *args[0]['a'][0]: inputs are tensors, numbers, strings, None, and containers of them
          fix  torch.utils._pytree.register_pytree_node(Opaque, flatten, unflatten)
    """,
    ),
    (
        plain,
        (torch.eye(3).to_sparse(),),
        {},
        """
        GP101 the input at *args[0] has layout torch.sparse_coo; only strided tensors are supported
          at   test_errors.py:N in failing: gp.export(model, args, **options)
          fix  args[0].to_dense()
    """,
    ),
    (
        plain,
        (x(),),
        {"guards": "maybe"},
        """
        GP101 guards is "error" or "runtime_assert", got 'maybe'
    """,
    ),
]


@pytest.mark.parametrize("case", ARGUMENTS, ids=lambda c: c[3].split("\n")[1].strip()[:60])
def test_arguments(case):
    model, args, options, expected = case
    error = failing(model, args, **options)
    assert isinstance(error, gp.errors.UserError) and isinstance(error, TypeError)
    assert text_of(error) == golden(expected)


def test_sizes_that_python_needs():
    b = gp.Dim("b")

    def listed(v):
        return [v[i] for i in range(len(v))]

    error = failing(listed, dynamic_shapes=({0: b},))
    assert isinstance(error, gp.errors.ConstraintViolationError)
    assert isinstance(error, ValueError)
    assert "b = 3" in error.fix and "range(len(v))" in str(error)


# Classes and causes


def test_the_users_own_exception():
    error = failing(Model(own))
    assert isinstance(error, Refused) and isinstance(error, gp.errors.UserError)
    assert error.code == 7 and error.what == "Refused in the program: (7, 'because')"
    cause = error.__cause__
    assert type(cause) is Refused and cause.args == (7, "because")
    frames = traceback.extract_tb(cause.__traceback__)
    assert frames[-1].name == "own" and frames[-1].line == 'raise Refused(7, "because")'


@pytest.mark.parametrize(
    "kind",
    [
        ValueError,
        KeyError,
        IndexError,
        AttributeError,
        AssertionError,
        OSError,
        StopIteration,
        NotImplementedError,
        RecursionError,
        UnicodeError,
        ImportError,
        torch.OutOfMemoryError,
    ],
)
def test_exceptions_can_be_caught_as_what_they_are(kind):
    def f(v):
        raise kind("the text")

    error = failing(Model(f))
    assert isinstance(error, kind) and isinstance(error, gp.errors.ForwardError)
    assert "the text" in str(error) and "raise kind" in str(error)


def test_an_exception_that_cannot_be_made_from_text():
    class Odd(Exception):
        def __new__(cls, a, b):
            return super().__new__(cls, a, b)

        def __init__(self, a, b):
            super().__init__(a, b)

    def f(v):
        raise Odd(1, 2)

    error = failing(Model(f))
    assert isinstance(error, gp.errors.ForwardError) and type(error.__cause__) is Odd


def test_what_is_not_an_error_passes_through():
    def stop(v):
        raise KeyboardInterrupt

    model = Model(stop)
    before = picture(model)
    with pytest.raises(KeyboardInterrupt):
        gp.export(model, (x(),))
    assert picture(model) == before


def test_an_exception_that_the_program_handles_is_not_an_error():
    def f(v):
        try:
            return v @ v
        except RuntimeError:
            return v + 1

    ep = gp.export(f, (x(),))
    torch.testing.assert_close(ep.module()(x()), x() + 1)


def test_classes():
    assert isinstance(failing(Model(branch)), RuntimeError)
    assert isinstance(failing(Model(shapes)), RuntimeError)
    assert isinstance(failing(Model(dims)), IndexError)
    assert isinstance(failing(Model(custom)), gp.errors.UnsupportedError)
    for fn in GOLDEN:
        error = failing(Model(fn))
        assert error.args == (str(error),)
        assert error.where is not None and error.where.file == __file__
        assert isinstance(error, gp.errors.UserError) or fn in (custom, custom_old)


def test_a_layer_of_torch_is_named_when_no_line_of_the_users_is_there():
    model = nn.BatchNorm1d(4, momentum=None).train()
    assert "batchnorm.py:N in _BatchNorm.forward" in text_of(failing(model))


def test_ambiguous_truth():
    error = failing(Model(lambda v: v if v else -v))
    assert "Boolean value of Tensor with more than one value is ambiguous" in str(error)


def test_a_truth_that_a_kernel_of_torch_asks_for_is_never_guessed():
    error = failing(Model(lambda v: torch.ops.aten.is_nonzero(v.sum() > 0)))
    assert isinstance(error, gp.errors.DataDependentError)


def test_a_program_that_failed_can_be_exported_once_it_is_mended():
    model = Model(branch)
    first = text_of(failing(model))
    assert text_of(failing(model)) == first
    model.block[0].fn = plain
    torch.testing.assert_close(gp.export(model, (x(),)).module()(x()), x() + 1)


def test_a_mode_switched_on_by_the_program_is_switched_off():
    def f(v):
        torch.set_grad_enabled(False)
        torch.manual_seed(3)
        raise ValueError("no")

    failing(Model(f))
    assert torch.is_grad_enabled()
