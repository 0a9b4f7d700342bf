"""PyTorch's own meta kernels on tensors whose sizes are our symbols."""

import pytest
import torch
import torch._decomp
import torch._meta_registrations
import torch._refs
import torch.nn.functional as F
from torch._dispatch.python import enable_python_dispatcher

from graphport.symbolic import Scope
from graphport.symbolic.bridge import from_torch, to_torch
from graphport.tensors.abstract import contiguous_strides


class Program:
    """b, s >= 0 and h, w >= 4 with example sizes 4, 16, 32 and 24; u >= 0 depends on data."""

    def __init__(self, b: int = 4) -> None:
        self.scope = Scope()
        symbol = self.scope.symbol
        self.b, self.s = (to_torch(symbol(name, hint=hint)) for name, hint in (("b", b), ("s", 16)))
        self.h, self.w = (
            to_torch(symbol(name, hint=hint, lower=4)) for name, hint in (("h", 32), ("w", 24))
        )
        self.u = to_torch(self.scope.fresh(lower=0))

    def tensor(self, *sizes, dtype=torch.float32):
        strides = contiguous_strides([from_torch(size) for size in sizes])
        return torch.empty_strided(
            sizes, [to_torch(stride) for stride in strides], dtype=dtype, device="meta"
        )

    def facts(self) -> list[str]:
        return [str(fact) for fact in self.scope.facts]


@pytest.fixture
def p():
    program = Program()
    with enable_python_dispatcher(), program.scope.operator():
        yield program


def seq(p):
    return p.tensor(p.b, p.s, 64)


def image(p):
    return p.tensor(p.b, 3, p.h, p.w)


def indices(p, *sizes):
    return p.tensor(*sizes, dtype=torch.int64)


def weight(*sizes):
    return torch.empty(*sizes, device="meta")


# operation: (call, the shape it has, the facts it needs)
OPERATIONS = {
    "empty_strided": (seq, "b, s, 64", []),
    "view": (lambda p: seq(p).view(p.b * p.s, 64), "b*s, 64", []),
    "view heads": (lambda p: seq(p).view(p.b, p.s, 8, 8).transpose(1, 2), "b, 8, s, 8", []),
    "reshape -1": (lambda p: seq(p).reshape(-1), "64*b*s", []),
    "reshape with -1": (lambda p: seq(p).reshape(p.b, -1, 8, 8), "b, s, 8, 8", []),
    "flatten": (lambda p: seq(p).flatten(0, 1), "b*s, 64", []),
    "unflatten": (lambda p: seq(p).unflatten(-1, (4, 16)), "b, s, 4, 16", []),
    "matmul": (lambda p: seq(p) @ weight(64, 32), "b, s, 32", []),
    "bmm": (lambda p: torch.bmm(seq(p), p.tensor(p.b, 64, p.s)), "b, s, s", []),
    "linear": (lambda p: F.linear(seq(p), weight(32, 64), weight(32)), "b, s, 32", []),
    "einsum": (lambda p: torch.einsum("bsd,btd->bst", seq(p), seq(p)), "b, s, s", []),
    "add": (lambda p: seq(p) + seq(p), "b, s, 64", []),
    "broadcast": (lambda p: seq(p) + p.tensor(1, p.s, 1), "b, s, 64", []),
    "broadcast missing dimensions": (lambda p: seq(p) * p.tensor(64), "b, s, 64", []),
    "cat": (lambda p: torch.cat([seq(p), seq(p)], 1), "b, 2*s, 64", []),
    "cat of different sizes": (
        lambda p: torch.cat([seq(p), p.tensor(p.b, p.h, 64)], 1),
        "b, s + h, 64",
        [],
    ),
    "stack": (lambda p: torch.stack([seq(p), seq(p)]), "2, b, s, 64", []),
    "slice from 1": (lambda p: p.tensor(p.b, p.h)[:, 1:], "b, h - 1", []),
    "slice of the last dimension": (lambda p: seq(p)[..., :32], "b, s, 32", []),
    "view by halves": (
        lambda p: seq(p).reshape(p.b, p.s * 2, 4, 8).view(p.b, p.s, 2, 4, 8),
        "b, s, 2, 4, 8",
        [],
    ),
    "view merged": (lambda p: seq(p).view(p.b, p.s * 64), "b, 64*s", []),
    "view split": (lambda p: p.tensor(p.b * p.s, 64).view(p.b, p.s, 64), "b, s, 64", []),
    "select": (lambda p: seq(p)[..., 0], "b, s", []),
    "unsqueeze": (lambda p: seq(p)[:, None], "b, 1, s, 64", []),
    "squeeze": (lambda p: seq(p)[:, None].squeeze(1), "b, s, 64", []),
    "expand": (lambda p: p.tensor(p.b, 1, 64).expand(p.b, p.s, 64), "b, s, 64", []),
    "repeat": (lambda p: seq(p).repeat(1, 2, 1), "b, 2*s, 64", []),
    "chunk": (lambda p: seq(p).chunk(2, -1)[0], "b, s, 32", []),
    "split": (lambda p: seq(p).split(16, -1)[3], "b, s, 16", []),
    "permute": (lambda p: seq(p).permute(2, 0, 1).contiguous(), "64, b, s", []),
    "sum": (lambda p: seq(p).sum(1), "b, 64", []),
    "mean": (lambda p: seq(p).mean(-1, keepdim=True), "b, s, 1", []),
    "softmax": (lambda p: seq(p).softmax(-1), "b, s, 64", []),
    "cumsum": (lambda p: seq(p).cumsum(1), "b, s, 64", []),
    "layer_norm": (lambda p: F.layer_norm(seq(p), (64,)), "b, s, 64", []),
    "attention": (
        lambda p: F.scaled_dot_product_attention(*[p.tensor(p.b, 8, p.s, 64) for _ in range(3)]),
        "b, 8, s, 64",
        [],
    ),
    "embedding": (lambda p: F.embedding(indices(p, p.b, p.s), weight(100, 64)), "b, s, 64", []),
    "gather": (lambda p: seq(p).gather(1, indices(p, p.b, p.s, 64)), "b, s, 64", []),
    "index": (lambda p: seq(p)[indices(p, 3)], "3, s, 64", []),
    "index_select": (lambda p: seq(p).index_select(1, indices(p, p.u)), "b, u0, 64", []),
    "where": (lambda p: torch.where(seq(p) > 0, seq(p), 0.0), "b, s, 64", []),
    "arange": (lambda p: torch.arange(p.s, device="meta"), "s", []),
    "tril": (lambda p: torch.ones(p.s, p.s, device="meta").tril(), "s, s", []),
    "new_zeros": (lambda p: seq(p).new_zeros(p.s + 1, p.s // 2), "s + 1, s//2", []),
    "zeros_like": (lambda p: torch.zeros_like(seq(p)), "b, s, 64", []),
    "copy_": (lambda p: p.tensor(p.b, p.s).copy_(p.tensor(p.b, p.s)), "b, s", []),
    "topk": (lambda p: seq(p).topk(3, -1).values, "b, s, 3", []),
    "roll": (lambda p: seq(p).roll(1, 1), "b, s, 64", []),
    "conv2d, same": (lambda p: F.conv2d(image(p), weight(8, 3, 3, 3), padding=1), "b, 8, h, w", []),
    "conv2d, strided": (
        lambda p: F.conv2d(image(p), weight(8, 3, 3, 3), stride=2),
        "b, 8, (h + 1)//2 - 1, (w + 1)//2 - 1",
        [],
    ),
    "max_pool2d": (lambda p: F.max_pool2d(image(p), 2), "b, 3, h//2, w//2", []),
    "avg_pool2d": (lambda p: F.avg_pool2d(image(p), 2), "b, 3, h//2, w//2", []),
    "adaptive_avg_pool2d": (lambda p: F.adaptive_avg_pool2d(image(p), 1), "b, 3, 1, 1", []),
    "interpolate by a factor": (
        lambda p: F.interpolate(image(p), scale_factor=2.0),
        "b, 3, 2*h, 2*w",
        [],
    ),
    "interpolate down": (
        lambda p: F.interpolate(image(p), scale_factor=0.5),
        "b, 3, h//2, w//2",
        [],
    ),
    "interpolate to a size": (
        lambda p: F.interpolate(image(p), size=(p.h // 2, p.w * 3), mode="bilinear"),
        "b, 3, h//2, 3*w",
        [],
    ),
    "batch_norm": (lambda p: F.batch_norm(image(p), weight(3), weight(3)), "b, 3, h, w", []),
    "pad": (lambda p: F.pad(image(p), (1, 2, 3, 4)), "b, 3, h + 7, w + 3", []),
    "channels last": (lambda p: image(p).to(memory_format=torch.channels_last), "b, 3, h, w", []),
    "a chain": (
        lambda p: F.conv2d(
            F.max_pool2d(F.conv2d(image(p), weight(4, 3, 3, 3), padding=1), 2),
            weight(4, 4, 3, 3),
            padding=1,
        ).flatten(2),
        "b, 4, (h//2)*(w//2)",
        [],
    ),
    "what depends on data": (
        lambda p: (p.tensor(p.u, 64) @ weight(64, 8)).sum(0, keepdim=True) + p.tensor(p.u, 8),
        "u0, 8",
        [],
    ),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_shape_and_facts(p, name):
    call, shape, facts = OPERATIONS[name]
    result = call(p)
    assert ", ".join(map(str, result.shape)) == shape
    assert p.facts() == facts


@pytest.mark.parametrize("name", OPERATIONS)
def test_sizes_of_0_and_1_in_the_example_change_nothing(name):
    """Operators must not tie the program to an example with a batch of one or none."""
    for size in (0, 1):
        p = Program(b=size)
        with enable_python_dispatcher(), p.scope.operator():
            result = OPERATIONS[name][0](p)
        assert ", ".join(map(str, result.shape)) == OPERATIONS[name][1]
        assert p.facts() == []


def test_what_torch_derives(p):
    x = seq(p)
    assert str(x.numel()) == "64*b*s"
    assert x.is_contiguous()
    assert not x.transpose(0, 1).is_contiguous()
    assert str(x.stride()) == "(64*s, 64, 1)"
    assert x.shape[0] is not None
    assert len(x.shape) == 3
    assert str(x[:, 1:].storage_offset()) == "64"
    nhwc = image(p).to(memory_format=torch.channels_last)
    assert nhwc.is_contiguous(memory_format=torch.channels_last)
    assert not nhwc.is_contiguous()
    assert p.facts() == []


def test_a_size_mismatch_is_the_operators_own_error(p):
    with pytest.raises(RuntimeError, match="same reduction dim"):
        seq(p) @ weight(65, 32)


def test_an_assertion_becomes_a_fact(p):
    """Two sizes that agree in the example and must: one fact, which is known from then on."""
    p.t = to_torch(p.scope.symbol("t", hint=16))
    assert (p.tensor(p.b, p.s) + p.tensor(p.b, p.t)).shape[1] is not None
    (fact,) = p.scope.facts
    assert str(fact) == "s == t"
    assert fact.internal
    assert fact.where.file == __file__
    torch.bmm(p.tensor(p.b, 4, p.s), p.tensor(p.b, p.t, 4))
    assert len(p.scope.facts) == 1


def test_a_slice_beyond_a_size_is_a_guard(p):
    assert str(p.tensor(p.b, p.s)[:, :5].shape[1]) == "5"
    assert p.facts() == ["s >= 5"]
