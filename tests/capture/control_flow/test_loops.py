"""`torch.while_loop`, `map`, `scan` and `associative_scan`, captured and in eager."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import torch
from functorch.experimental import control_flow
from torch import nn
from torch._higher_order_ops import associative_scan as torch_associative_scan
from torch._higher_order_ops import map as torch_map
from torch._higher_order_ops import scan as torch_scan

import graphport as gp
from graphport.errors import InputError, MutationError, UnsupportedError, UserError
from tests.capture import control
from tests.capture.control import cond, while_loop
from tests.helpers import check

N = gp.Dim("n", min=1, max=20)
HIGHER = torch.ops.higher_order


def calls(ep, op):
    return [n for n in ep.graph.nodes if n.target is op]


# while_loop


def test_a_counter_and_a_value():
    def f(i, x):
        return while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x + i), (i, x))

    zero_steps = (torch.tensor(6), torch.zeros(4))
    ep = check(f, (torch.tensor(3), torch.zeros(4)), others=[zero_steps])
    (call,) = calls(ep, HIGHER.while_loop)
    assert [n.target for n in call.args[:2]] == [
        "while_loop_cond_graph_0",
        "while_loop_body_graph_0",
    ]
    body = ep.graph_module.while_loop_body_graph_0.graph
    assert [n.name for n in body.nodes if n.op == "placeholder"] == ["i", "x"]


def test_python_numbers_are_carried():
    def f(x):
        return while_loop(lambda i, x: 2 * i < x.shape[0], lambda i, x: (i + 1, x + i), (0, x))

    others = [(torch.zeros(8, 4),), (torch.zeros(1, 4),)]
    check(f, (torch.zeros(5, 4),), dynamic_shapes=({0: N},), others=others)


def test_symbolic_numbers_are_carried():
    def f(x, i):
        n, m, x = while_loop(
            lambda n, m, x: n < 30, lambda n, m, x: (n * 2, m - n, x + m), (x.shape[0], i.item(), x)
        )
        return x * n, m

    others = [(torch.zeros(8, 4), torch.tensor(-3)), (torch.zeros(20, 4), torch.tensor(0))]
    check(f, (torch.zeros(5, 4), torch.tensor(7)), dynamic_shapes=({0: N}, None), others=others)


def test_bools_and_integers_are_carried():
    def f(x):
        start = (torch.tensor(True), torch.tensor(0), x)
        return while_loop(lambda b, i, x: b, lambda b, i, x: (i < 3, i + 1, x * 2), start)

    check(f, (torch.ones(4),))


def test_containers_are_carried():
    def f(x):
        return while_loop(
            lambda d: d["i"] < 3,
            lambda d: ({"i": d["i"] + 1, "x": [d["x"][0] * 2, d["x"][1] + d["x"][0]]},),
            ({"i": torch.tensor(0), "x": [x, x.clone()]},),
        )[0]["x"]

    if_eager = torch.tensor([1.0, 2.0])
    ep = gp.export(f, (if_eager,))
    ep.validate()
    out = ep.module()(if_eager)
    torch.testing.assert_close(
        torch.stack(list(pytree_leaves(out))), torch.stack([if_eager * 8, if_eager * 8])
    )


def pytree_leaves(x):
    return torch.utils._pytree.tree_leaves(x)


def test_loops_close_over_what_is_around():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("limit", torch.tensor(3))

        def forward(self, x):
            scale, n = x.abs().max(), x.shape[0]

            def body(i, x):
                return i + 1, self.linear(x) * scale / n

            return while_loop(lambda i, x: i < self.limit, body, (torch.tensor(0), x))[1]

    others = [(torch.randn(3, 4),)]
    ep = check(Model(), (torch.randn(2, 4),), dynamic_shapes=({0: N},), others=others)
    body = ep.graph_module.while_loop_body_graph_0.graph
    (linear,) = (n for n in body.nodes if n.target is torch.ops.aten.linear.default)
    assert [path for path, _ in linear.meta["nn_module_stack"].values()] == ["", "linear"]
    assert "self.linear(x) * scale" in linear.meta["stack_trace"]


def test_a_first_value_of_another_layout():
    def f(x):
        return while_loop(
            lambda i, x: i < 2,
            lambda i, x: (i + 1, (x * 2).t().contiguous().t()),
            (torch.tensor(0), x.t()),
        )[1]

    check(f, (torch.randn(2, 3),))


def test_writes_to_memory_from_outside_are_carried():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(4))

        def forward(self, x):
            seen = torch.zeros(8)

            def body(i, x):
                self.total.add_(x)
                seen[i] = self.total.sum()
                return i + 1, x + seen[0] + self.total

            _, y = while_loop(lambda i, x: self.total.sum() < 30, body, (torch.tensor(0), x))
            return y, seen

    ep = check(Model(), (torch.ones(4),), others=[(torch.ones(4) * 10,)])
    assert set(ep.graph_signature.buffers_to_mutate.values()) == {"total"}


def test_a_literal_that_the_body_writes_to_is_not_taken_as_it_was():
    def f(x):
        flag = torch.tensor(0)

        def body(x):
            y = cond(flag > 0, lambda x: x * 2, lambda x: x + 1, (x,))
            flag.add_(1)
            return (y,)

        return while_loop(lambda x: x.sum() < 40, body, (x,))[0], flag

    check(f, (torch.ones(4),))


def test_data_dependent_sizes_in_a_loop():
    def f(x):
        def body(i, x):
            n = (x > i).nonzero().shape[0]
            torch._check(n <= 4)
            return i + 1, x + n

        return while_loop(lambda i, x: i < 3, body, (torch.tensor(0), x))[1]

    check(f, (torch.tensor([0.0, 1, 2, 3]),))


def test_nested_loops():
    def f(x):
        def body(i, x):
            _, y = while_loop(lambda j, y: j < i, lambda j, y: (j + 1, y + x), (torch.tensor(0), x))
            return i + 1, y / 2

        return while_loop(lambda i, x: i < 4, body, (torch.tensor(0), x))[1]

    check(f, (torch.ones(4),))


def halved(x, steps=3):
    return while_loop(lambda i, a: i < steps, lambda i, a: (i + 1, a / 2), (torch.tensor(0), x))[1]


def transposed(*sizes):
    return torch.rand(sizes[::-1]).permute(*range(len(sizes))[::-1])


def written_in_order(x):
    """Whether it is y itself that is written to depends on how y lies in memory."""
    y = halved(x)
    y.contiguous().add_(1)
    return y


def seen_in_order(x):
    y = halved(x)
    z = y.reshape(-1)
    y.mul_(2)
    return z


@pytest.mark.parametrize("f", [written_in_order, seen_in_order])
@pytest.mark.parametrize("make", [transposed, torch.rand])
def test_what_a_loop_carries_lies_as_in_eager(f, make):
    ep = check(f, (make(4, 3, 2),), others=[(make(4, 3, 2),)])
    other = (torch.rand if make is transposed else transposed)(4, 3, 2)
    with pytest.raises(RuntimeError, match="strides"):
        ep.module()(other)


@pytest.mark.parametrize("f", [written_in_order, seen_in_order])
def test_a_carried_value_that_lies_otherwise_after_a_step(f):
    """Of an expanded tensor, a step makes one that is not."""
    with pytest.raises(UnsupportedError, match="memory layout of a tensor that a branch or loop"):
        gp.export(f, (torch.rand(1, 3, 2).expand(4, 3, 2),))


def test_a_body_that_turns_what_it_carries():
    def turned(x, n):
        step = lambda i, a: (i + 1, a.t() * 2)
        return while_loop(lambda i, a: i < n, step, (n * 0, x))[1]

    def written(x, n):
        y = turned(x, n)
        y.reshape(-1).add_(1)
        return y

    inputs = [(torch.rand(3, 3), torch.tensor(n)) for n in (1, 2, 0)]
    check(turned, inputs[0], others=inputs[1:])
    with pytest.raises(UnsupportedError, match="memory layout of a tensor that a branch or loop"):
        gp.export(written, inputs[0])


def test_a_write_to_what_a_loop_returns_as_it_was_given():
    """In eager it is the input itself that is written to, in whatever layout."""

    def f(x):
        y = while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a), (torch.tensor(0), x))[1]
        y.add_(1)
        return x * 1

    with pytest.raises(MutationError, match="in eager the two may alias"):
        gp.export(f, (transposed(3, 2),))


def test_a_write_where_branches_lie_differently():
    def f(x):
        y = cond(x.sum() > 0, lambda x: x * 2, lambda x: (x.t().contiguous() * 3).t(), (x,))
        y.reshape(-1).add_(1)
        return y

    with pytest.raises(UnsupportedError, match="memory layout of a tensor that a branch or loop"):
        gp.export(f, (torch.rand(3, 2),))


# map


MAPS = [
    (lambda x: x.sin() + 1, False),
    (lambda x: (x * 2, {"s": x.sum(), "none": None}), False),
    (lambda x: x, False),
    (lambda x: x.t() if x.dim() > 1 else x.flip(0), False),
]


@pytest.mark.parametrize("f", [f for f, _ in MAPS])
@pytest.mark.parametrize(
    "operator", [gp.map, torch_map, control_flow.map], ids=["gp", "hop", "functorch"]
)
def test_map(f, operator):
    def program(x):
        return operator(f, x) if torch.compiler.is_compiling() else gp.map(f, x)

    ep = check(
        program, (torch.randn(3, 2, 4),), dynamic_shapes=({0: N},), others=[(torch.randn(1, 2, 4),)]
    )
    (call,) = calls(ep, HIGHER.map_impl)
    assert call.args[0].target == "body_graph_0"


def test_map_over_containers_with_further_arguments():
    def f(xs, y, k):
        return gp.map(lambda d, y, k: d["a"] * k + d["b"][0].sum() + y, xs, y, k)

    args = ({"a": torch.randn(3, 4), "b": [torch.randn(3, 2)]}, torch.randn(4), 5)
    check(f, args)


def test_map_is_called_on_single_elements():
    seen = []

    def f(x):
        seen.append(tuple(x.shape))
        return x * 2

    gp.map(f, torch.ones(2, 3))
    assert seen == [(3,), (3,)]


def test_map_with_closures_sizes_and_modules():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x, k):
            n = x.shape[0]
            return gp.map(lambda row: self.linear(row) * n + k.item(), x).sum(0)

    args = (torch.randn(3, 4), torch.tensor(2))
    check(
        Model(), args, dynamic_shapes=({0: N}, None), others=[(torch.randn(7, 4), torch.tensor(-1))]
    )


def test_map_over_a_view():
    check(
        lambda x: gp.map(lambda row: row.reshape(-1) + 1, x.transpose(0, 1)),
        (torch.randn(2, 3, 4),),
    )


# scan


def test_scan_with_all_options():
    def f(x):
        results = []
        for dim in (0, 1, -1):
            for reverse in (False, True):
                results.append(
                    gp.scan(
                        lambda c, x: (c + x, c * x),
                        torch.zeros([s for d, s in enumerate(x.shape) if d != dim % 3]),
                        x,
                        dim=dim,
                        reverse=reverse,
                    )
                )
        return results

    ep = check(f, (torch.randn(2, 3, 4),))
    assert len(calls(ep, HIGHER.scan)) == 6


def test_scan_agrees_with_torch():
    def combine(c, x):
        return {"a": c["a"] + x[0], "b": c["b"] * x[1].sum()}, (c["a"] * 2, [x[1].sum()])

    def program(operator, x, y):
        return operator(combine, {"a": torch.zeros(3), "b": torch.ones(())}, (x, y), dim=0)

    def f(x, y):
        return program(torch_scan if torch.compiler.is_compiling() else gp.scan, x, y)

    others = [(torch.randn(1, 3), torch.randn(1, 2))]
    check(f, (torch.randn(4, 3), torch.randn(4, 2)), dynamic_shapes=({0: N}, {0: N}), others=others)


def test_scan_of_a_cell():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.GRUCell(3, 4)

        def forward(self, x):
            def step(h, x):
                h = self.cell(x, h)
                return h, h.clone()

            return gp.scan(step, torch.zeros(x.shape[1], 4), x)

    b = gp.Dim("b", max=9)
    ep = check(
        Model(),
        (torch.randn(5, 2, 3),),
        dynamic_shapes=({0: N, 1: b},),
        others=[(torch.randn(1, 1, 3),), (torch.randn(3, 4, 3),)],
    )
    names = [
        n.name for n in ep.graph_module.scan_combine_graph_0.graph.nodes if n.op == "placeholder"
    ]
    assert names[:2] == ["zeros", "x"] and "p_cell_weight_ih" in names


def test_scan_over_nothing():
    assert gp.scan(lambda c, x: (c, x), torch.ones(2), ())[1] == []


def test_writes_to_memory_from_outside_in_scan():
    def f(x):
        cache = torch.zeros(3)

        def step(c, x):
            cache.add_(x)
            return c + cache, cache * 2

        carry, ys = gp.scan(step, torch.zeros(3), x)
        return carry, ys, cache

    check(f, (torch.randn(4, 3),), dynamic_shapes=({0: N},), others=[(torch.randn(2, 3),)])


# associative_scan


@pytest.mark.parametrize("reverse", [False, True])
def test_associative_scan(reverse):
    """torch takes it apart itself, for any number of elements that is fixed."""

    def f(x):
        if torch.compiler.is_compiling():
            return torch_associative_scan(torch.add, x, 1, reverse, combine_mode="generic")
        return x.flip(1).cumsum(1).flip(1) if reverse else x.cumsum(1)

    check(f, (torch.randn(3, 5),), layout=False)


def test_the_operator_of_associative_scan():
    def f(x, k):
        if torch.compiler.is_compiling():
            (out,) = HIGHER.associative_scan(lambda a, b: [a * k + b - a * (k - 1)], [x], ())
            return out
        return x.cumsum(0)

    others = [(torch.randn(1, 2), torch.randn(())), (torch.randn(8, 2), torch.randn(()))]
    ep = check(
        f,
        (torch.randn(5, 2), torch.randn(())),
        dynamic_shapes=({0: N}, None),
        others=others,
        rtol=1e-4,
        atol=1e-4,
    )
    assert len(calls(ep, HIGHER.associative_scan)) == 1


# In each other


def test_all_in_each_other():
    def f(x):
        def step(carry, row):
            grown = cond(
                row.sum() > 0,
                lambda r: gp.map(lambda e: e * carry.sum(), r),
                lambda r: while_loop(lambda r: r.sum() < 1, lambda r: (r + 1,), (r,))[0],
                (row,),
            )
            return carry + grown, grown * 2

        return gp.scan(step, torch.ones(3), x)

    rows = torch.tensor([[1.0, 2, 3], [-1, -2, 0], [0.5, 0, 0]])
    check(f, (rows,), dynamic_shapes=({0: N},), others=[(-rows,), (rows[:1],)])


# In eager


def test_eager_is_differentiable():
    x, w = torch.randn(3, 2, requires_grad=True), torch.randn(2, requires_grad=True)
    gp.map(lambda r: (r * w).sin(), x).sum().backward()
    grads = [t.grad.clone() for t in (x, w)]
    x.grad = w.grad = None
    (x * w).sin().sum().backward()
    torch.testing.assert_close(grads, [x.grad, w.grad])
    carry, ys = gp.scan(lambda c, r: (c * r, c + r), w, x)
    (carry.sum() + ys.sum()).backward()
    assert torch.autograd.gradcheck(
        lambda x, w: gp.scan(lambda c, r: (c * r, c + r), w, x), (x.double(), w.double())
    )


@pytest.mark.parametrize("kind", ["map", "scan"])
def test_gradients_of_captured_loops(kind):
    w = nn.Parameter(torch.randn(4))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = w

        def forward(self, x):
            if kind == "map":
                return gp.map(lambda r: (r * self.w).sin(), x)
            return gp.scan(lambda c, r: (c * r + self.w, c * 2), torch.ones(4), x)[1]

    model, x = Model(), torch.randn(3, 4)
    module = gp.export(model, (x,)).module()
    grads = []
    for run in (module, model):
        given = x.clone().requires_grad_()
        w.grad = None
        run(given).square().sum().backward()
        grads.append((given.grad, w.grad.clone()))
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: gp.map(torch.sin, torch.ones(0, 2)), "one or more elements"),
        (lambda: gp.map(torch.sin, 3), "goes over tensors with at least 1 dims, got 3"),
        (lambda: gp.map(lambda p: p[0], (torch.ones(2), torch.ones(3))), "sizes 2, 3 in dim 0"),
        (lambda: gp.map(lambda x: 3, torch.ones(2)), "return tensors, got 3"),
        (lambda: gp.scan(lambda c, x: c, torch.ones(2), torch.ones(2)), "returns (carry, y)"),
        (
            lambda: gp.scan(lambda c, x: (c.double(), x), torch.ones(2), torch.ones(3, 2)),
            "gp.scan carries float32[2], but its function returns float64[2]",
        ),
    ],
)
def test_eager_errors(call, said):
    with pytest.raises((UserError, InputError)) as error:
        call()
    assert said in str(error.value)
    assert "test_loops.py" in str(error.value)


def test_helpers_agree_with_the_public_functions():
    x = torch.randn(3, 2)
    torch.testing.assert_close(control.map(torch.sin, x), x.sin())
    carry, ys = control.scan(lambda c, r: (c + r, c * 1), torch.zeros(2), x)
    torch.testing.assert_close(carry, x.sum(0))
    torch.testing.assert_close(ys[1:], x.cumsum(0)[:-1])


_WITHOUT_DYNAMO = """
import json, sys
import torch
import graphport as gp

def loop(x):
    y = torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))
    i, z = torch.while_loop(lambda i, z: i < 3, lambda i, z: (i + 1, z + y), (torch.tensor(0), x))
    m = gp.map(lambda r: r * 2 + y[0], z)
    return gp.scan(lambda c, r: (c + r, c * r), torch.zeros(2), m)

ep = gp.export(loop, (torch.ones(3, 2),))
after_capture = "torch._dynamo" in sys.modules
with torch.no_grad():
    ep.module()(torch.ones(3, 2))
print(json.dumps([after_capture, "torch._dynamo" in sys.modules]))
"""


def test_nothing_of_it_needs_dynamo():
    out = subprocess.run(
        [sys.executable, "-c", _WITHOUT_DYNAMO], capture_output=True, text=True, check=True
    )
    assert json.loads(out.stdout) == [False, False]


def test_the_body_of_a_loop_reads_a_row() -> None:
    """By a number that is carried, as a tensor or not; torch's own needs it as a number."""

    def totals(boxes: torch.Tensor) -> Any:
        def body(i: Any, total: torch.Tensor) -> Any:
            return i + 1, total * 2 + boxes[i].sum()

        begin = torch.zeros(())
        sums = [
            torch.while_loop(lambda i, total: i < boxes.shape[0], body, (first, begin))[1]
            for first in (0, torch.tensor(0))
        ]
        return tuple(sums)

    def plain(boxes: torch.Tensor) -> Any:
        total = torch.zeros(())
        for row in boxes:
            total = total * 2 + row.sum()
        return total, total

    shapes = ({0: gp.Dim("n")},)
    boxes = torch.randn(5, 4)
    ep = gp.export(totals, (boxes,), dynamic_shapes=shapes)
    file = gp.onnx.export(totals, (boxes,), dynamic_shapes=shapes)
    for x in (boxes, boxes[:2], boxes[:0]):
        torch.testing.assert_close(ep.module()(x), plain(x))
        torch.testing.assert_close(tuple(file(x)), plain(x))
