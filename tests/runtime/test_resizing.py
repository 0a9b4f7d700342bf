"""Results of compiled functions grow and shrink as eager's do."""

import copy

import onnx
import pytest
import torch

from graphport.runtime import OrtBackend

ROWS = torch.arange(6.0).reshape(2, 3)


def compiled(f, **options):
    return torch.compile(f, backend=OrtBackend(options))


def same(found, expected):
    assert found.shape == expected.shape
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found, expected)


def made_empty(x):
    v = torch.empty(0)
    torch.mul(x, 2, out=v)
    return v


def made_too_small(x):
    v = x[:1] * 2
    torch.cat([x, x], out=v.resize_(0))
    return v, v + 1


def several(x):
    values, indices = torch.empty(0), torch.empty(0, dtype=torch.long)
    torch.topk(x, 2, out=(values, indices))
    return values, indices


def resized(x):
    y = x * 2
    return y.resize_(1, 4)


def set_to_another(x):
    v, y = torch.empty(0), x * 2
    v.set_(y)
    y.add_(1)
    return v


def transposed(x):
    v = torch.zeros(3, 2)
    torch.mul(x, 2, out=v.T)
    return v


@pytest.mark.parametrize(
    "f", [made_empty, made_too_small, several, resized, set_to_another, transposed]
)
def test_within_the_function(f):
    found, expected = compiled(f)(ROWS), f(ROWS)
    for a, b in zip(*(t if isinstance(t, tuple) else (t,) for t in (found, expected)), strict=True):
        same(a, b)


OUT = {
    "empty": lambda: torch.empty(0),
    "right": lambda: torch.zeros(2, 3),
    "strided": lambda: torch.zeros(3, 2).T,
    "view": lambda: torch.zeros(2, 2, 3)[1],
}


@pytest.mark.parametrize("make", OUT.values(), ids=OUT)
def test_out_as_an_argument(make):
    def f(x, out):
        return torch.mul(x, 2, out=out)

    found, expected = make(), make()
    given = compiled(f)(ROWS, found)
    same(given, f(ROWS, expected))
    same(found, expected)
    assert given.data_ptr() == found.data_ptr()


def results(x):
    return x * 2, x.sum(), x > 1, x.T + 1, x[x > 1], x.long(), x.half(), x.bfloat16()


@pytest.mark.parametrize("data_dependent", [False, True])
def test_results_can_be_resized(data_dependent):
    patch = torch._dynamo.config.patch(capture_dynamic_output_shape_ops=data_dependent)
    with patch:
        found = compiled(results)(ROWS)
    for a, b in zip(found, results(ROWS), strict=True):
        n = b.numel()
        torch.testing.assert_close(a.resize_(100)[:n], b.resize_(100)[:n])
        same(torch.ones(5, 5, out=a.float()), torch.ones(5, 5, out=b.float()))


def test_gradients_can_be_resized():
    x = ROWS.clone().requires_grad_()
    compiled(lambda x: x.sin())(x).sum().backward()
    assert x.grad is not None
    assert x.grad.untyped_storage().resizable()


def test_results_are_memory_of_their_own():
    f = compiled(lambda x: x + 1)
    first = f(ROWS)
    kept = copy.deepcopy(first)
    f(ROWS * 5)
    torch.testing.assert_close(first, kept)


@pytest.mark.parametrize("preallocate_output", [False, True])
def test_models_that_the_user_changes(preallocate_output):
    """Their sizes may be others; who says that they are not gets results without a copy."""

    def negate(model: onnx.ModelProto) -> None:
        (node,) = model.graph.node
        node.op_type = "Sub"

    f = compiled(
        lambda x: x + x, pre_ort_model_transforms=[negate], preallocate_output=preallocate_output
    )
    found = f(ROWS)
    torch.testing.assert_close(found, torch.zeros(2, 3))
    assert found.resize_(3, 4).shape == (3, 4)


def test_changed_models_may_give_other_sizes():
    def flatten(model: onnx.ModelProto) -> None:
        (node,) = model.graph.node
        node.op_type = "Flatten"
        del node.input[1:]
        del node.attribute[:]

    f = compiled(lambda x: x + x, pre_ort_model_transforms=[flatten], strict=True)
    assert f(torch.ones(2, 3, 4)).shape == (2, 12)
