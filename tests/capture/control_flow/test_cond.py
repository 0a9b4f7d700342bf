"""`torch.cond`: predicates, closures, what branches may do and return, names and metadata."""

from __future__ import annotations

import pytest
import torch
from functorch.experimental import control_flow
from torch import cond as early_cond
from torch import nn
from torch._higher_order_ops import cond as higher_order_cond

import graphport as gp
from tests.capture.control import cond, while_loop
from tests.helpers import check

N = gp.Dim("n", min=2, max=20)
UP, DOWN = torch.ones(4), -torch.ones(4)
HIGHER = torch.ops.higher_order


def both(f, **options):
    """Checked at inputs that take both branches."""
    return check(f, (UP,), others=[(DOWN,)], **options)


def calls(ep, op):
    return [n for n in ep.graph.nodes if n.target is op]


# Predicates


def test_a_tensor_decides():
    ep = both(lambda x: cond(x.sum() > 0, torch.sin, torch.cos, (x,)))
    assert len(calls(ep, HIGHER.cond)) == 1


def test_a_tensor_of_one_element_decides():
    both(lambda x: cond((x.sum() > 0).reshape(1), torch.sin, torch.cos, (x,)))


@pytest.mark.parametrize("size", [lambda x: int(x.shape[0]), lambda x: len(range(x.shape[0]))])
def test_a_number_of_a_branch_that_the_example_does_not_take(size):
    def f(x):
        return cond(x.shape[0] > 4, lambda x: x.sin(), lambda x: x * size(x), (x,))

    check(f, (torch.randn(6),), dynamic_shapes=({0: N},), others=[(torch.randn(3),)])
    assert not calls(gp.export(f, (torch.randn(6),)), HIGHER.cond)


def test_sizes_of_a_branch_that_the_example_does_not_take():
    def small(x):
        torch._check(x.shape[0] <= 3)
        return x + 1

    def single(x):
        return (x[:1] + torch.ones(3)).sum(0, keepdim=True).expand(x.shape[0], 3)

    m = gp.Dim("m", max=20)
    sizes = [(torch.randn(n, 3),) for n in (1, 3, 9)]
    check(
        lambda x: cond(x.shape[0] > 3, torch.sin, small, (x,)),
        sizes[2],
        dynamic_shapes=({0: m},),
        others=sizes,
    )
    check(
        lambda x: cond(x.shape[0] == 1, single, torch.sin, (x,)),
        sizes[2],
        dynamic_shapes=({0: m},),
        others=sizes,
    )
    check(
        lambda x: cond(x.shape[0] == 1, lambda x: (x + torch.ones(3, 3)).sum(), torch.sum, (x,)),
        sizes[2],
        dynamic_shapes=({0: m},),
        others=sizes,
    )


@pytest.mark.parametrize("example", [6, 3])
def test_a_size_decides(example):
    ep = check(
        lambda x: cond(x.shape[0] > 4, lambda x: x.sin(), lambda x: x.cos(), (x,)),
        (torch.randn(example, 4),),
        dynamic_shapes=({0: N},),
        others=[(torch.randn(4, 4),), (torch.randn(5, 4),)],
    )
    assert len(calls(ep, HIGHER.cond)) == 1


@pytest.mark.parametrize("limit", [1, 30])
def test_a_size_that_is_known_to_decide_selects_its_branch(limit):
    ep = check(
        lambda x: cond(x.shape[0] > limit, lambda x: x.sin(), lambda x: x.cos(), (x,)),
        (torch.randn(6, 4),),
        dynamic_shapes=({0: N},),
        others=[(torch.randn(3, 4),)],
    )
    assert not calls(ep, HIGHER.cond)


@pytest.mark.parametrize("constant", [True, False, 1, 0.0])
def test_a_constant_selects_its_branch(constant):
    ep = both(lambda x: cond(constant, lambda x: x.sin(), lambda x: x.cos(), (x,)))
    assert not calls(ep, HIGHER.cond)


def test_a_literal_tensor_selects_its_branch():
    ep = both(lambda x: cond(torch.tensor(3) > 2, lambda x: x.sin(), lambda x: x.cos(), (x,)))
    assert not calls(ep, HIGHER.cond)


def test_a_number_made_of_data_decides():
    both(lambda x: cond(x.sum().item() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,)))
    check(
        lambda i: cond(i.item() * 2 > 5, lambda i: i + 1, lambda i: i - 1, (i,)),
        (torch.tensor(3),),
        others=[(torch.tensor(2),)],
    )


def test_a_truth_made_of_data_decides():
    both(lambda x: cond((x > 0).all().item(), lambda x: x.sin(), lambda x: x.cos(), (x,)))


def test_a_buffer_decides():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("pred", torch.tensor(False))
            self.register_buffer("t", torch.tensor(10))

        def forward(self, x, y):
            def true_fn(x, y):
                with torch.enable_grad():
                    return x - 1 + self.t + y

            return cond(self.pred, true_fn, lambda x, y: x + 1 - self.t + y, [x, y])

    with torch.no_grad():
        ep = check(Model(), (torch.tensor(10), torch.tensor(12)))
    assert [n.name for n in calls(ep, HIGHER.cond)[0].args[-1]] == ["x", "y", "b_t"]


@pytest.mark.parametrize(
    "spelling",
    [torch.cond, early_cond, higher_order_cond, control_flow.cond, HIGHER.cond],
    ids=["torch", "imported early", "higher order", "functorch", "operator"],
)
def test_all_spellings(spelling):
    ep = gp.export(
        lambda x: spelling(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,)), (UP,)
    )
    assert len(calls(ep, HIGHER.cond)) == 1
    for x in (UP, DOWN):
        torch.testing.assert_close(ep.module()(x), x.sin() if x.sum() > 0 else x.cos())


# What branches use


class Closures(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.arange(4.0))
        self.register_buffer("buffer", torch.arange(4.0) + 1)
        self.constant = torch.tensor([1.0, 2.0, 3.0, 4.0])

    def forward(self, x):
        middle, size = x * 3, x.shape[0]
        return cond(
            x.sum() > 0,
            lambda x: x * self.weight + middle + size,
            lambda x: x + self.buffer * self.constant - middle[:size],
            (x,),
        )


def test_closures_over_state_values_and_sizes():
    ep = both(Closures())
    (call,) = calls(ep, HIGHER.cond)
    names = ["x", "p_weight", "mul", "b_buffer", "c_constant"]
    assert [n.name for n in call.args[-1]] == names
    for name in ("true_graph_0", "false_graph_0"):
        inner = getattr(ep.graph_module, name).graph
        assert [n.name for n in inner.nodes if n.op == "placeholder"] == names


def test_closures_over_symbolic_sizes():
    def f(x, y):
        n = x.shape[0]
        return cond(
            x.sum() > 0,
            lambda x: x.sin() * n + y[0] * (n + 1),
            lambda x: x[: n // 2].sum() + x,
            (x,),
        )

    sizes = [(torch.randn(k, 3), torch.randn(2 * k, 3)) for k in (2, 5, 8)]
    check(
        f, (torch.ones(4, 3), torch.randn(8, 3)), dynamic_shapes=({0: N}, {0: 2 * N}), others=sizes
    )


def test_closures_over_numbers_made_of_data():
    def f(x, i):
        n, s, t = i.item(), x.sum().item(), (x[0] > 0).item()
        return cond(x[1] > 0, lambda x: x * n + s, lambda x: x - s * n + t, (x,))

    check(f, (UP, torch.tensor(3)), others=[(DOWN, torch.tensor(-2))])


def test_numbers_as_operands():
    def f(x, i):
        return cond(
            x.sum() > 0, lambda x, a, b: x * a + b, lambda x, a, b: x - a * b, (x, 3, i.item())
        )

    check(f, (UP, torch.tensor(3)), others=[(DOWN, torch.tensor(-2))])


def test_one_tensor_as_two_operands():
    ep = both(lambda x: cond(x.sum() > 0, lambda a, b: a * b, lambda a, b: a - b * 2, (x, x)))
    (call,) = calls(ep, HIGHER.cond)
    assert [n.name for n in call.args[-1]] == ["x"]


def test_no_operands():
    both(lambda x: cond(x.sum() > 0, lambda: x.sin(), lambda: x.cos(), ()))


def test_operands_in_containers():
    def f(x):
        given = ({"a": x, "b": [x * 2, (x + 1,)]},)
        return cond(
            x.sum() > 0, lambda d: d["a"] + d["b"][0], lambda d: d["a"] * d["b"][1][0], given
        )

    both(f)


def test_tensors_made_in_a_branch():
    def f(x):
        return cond(
            x.sum() > 0,
            lambda x: x * torch.tensor([1.0, 2.0, 3.0, 4.0]) + torch.arange(4),
            lambda x: x + torch.zeros_like(x) + torch.tensor(2.0),
            (x,),
        )

    both(f)


def test_a_literal_made_in_a_branch_can_be_looked_at():
    def f(x):
        def true_fn(x):
            t = torch.tensor(2)
            return x + 1 if t > 1 else x - 1

        return cond(x.sum() > 0, true_fn, lambda x: x * 2, (x,))

    both(f)


# Nests and modules


def test_nested():
    def f(x):
        scale = x.abs().max()

        def true_fn(x):
            return cond(x[0] > 0, lambda x: x + scale, lambda x: x + 2, (x,))

        def false_fn(x):
            inner = x * 2
            return cond(x[0] > -0.5, lambda x: x + inner, lambda x: x.sin() * scale, (x,))

        return cond(x.sum() > 0, true_fn, false_fn, (x,))

    mixed = torch.tensor([-1.0, 3.0, 1.0, 1.0])
    ep = check(f, (UP,), others=[(DOWN,), (mixed,), (-mixed,), (DOWN / 4,)])
    inner = ep.graph_module.true_graph_0
    assert [n.target for n in inner.graph.nodes if n.op == "get_attr"] == [
        "true_graph_0",
        "false_graph_0",
    ]


class Bar(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return cond(
            x.shape[0] > 4, lambda x: self.linear(x).cos(), lambda x: self.linear(x).sin(), [x]
        )


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.bar = Bar()

    def forward(self, x):
        return x.cos() + self.bar(x)


def test_modules_in_both_branches_and_metadata_inside():
    others = [(torch.randn(7, 4),), (torch.randn(2, 4),)]
    ep = check(Outer(), (torch.randn(4, 4),), dynamic_shapes=({0: N},), others=others)
    for name in ("true_graph_0", "false_graph_0"):
        nodes = list(getattr(ep.graph_module, name).graph.nodes)
        (linear,) = (n for n in nodes if n.target is torch.ops.aten.linear.default)
        paths = [path for path, _ in linear.meta["nn_module_stack"].values()]
        assert paths == ["", "bar", "bar.linear"]
        (last,) = (n for n in nodes if n.name in ("cos", "sin"))
        assert [path for path, _ in last.meta["nn_module_stack"].values()] == ["", "bar"]
        assert "self.linear(x).cos()" in last.meta["stack_trace"]
        assert last.meta["torch_fn"][1].endswith(f".{last.name}")
        assert [n.name for n in nodes[:3]] == ["x", "p_bar_linear_weight", "p_bar_linear_bias"]


def test_methods_of_modules_as_branches():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU())

        def forward(self, x):
            return cond(x.sum() > 0, self.first, self.second.forward, (x,))

    both(Model())


def test_batch_norm_in_a_branch_updates_its_buffers():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, x):
            return cond(x.sum() > 0, self.norm, lambda x: x * 2, (x,))

    model = Model()
    ep = check(model, (torch.rand(5, 3),), others=[(-torch.rand(5, 3),)])
    assert set(ep.graph_signature.buffers_to_mutate.values()) == {
        "norm.running_mean",
        "norm.running_var",
        "norm.num_batches_tracked",
    }


def test_dropout_in_a_branch():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, x):
            return cond(x.sum() > 0, self.drop, lambda x: x * 2, (x,))

    both(Model())


# Mutation


def test_writes_to_values_made_inside():
    def f(x):
        def true_fn(x):
            y = x.sin()
            y.add_(1)
            y[0] = 3
            y.view(2, 2)[1].mul_(2)
            return y

        return cond(x.sum() > 0, true_fn, lambda x: x.cos(), (x,))

    both(f)


def test_writes_to_operands():
    def f(x):
        y = x.clone()

        def true_fn(y):
            y.add_(1)
            return y * 2

        out = cond(x.sum() > 0, true_fn, lambda y: y.cos(), (y,))
        return out, y

    both(f)


def test_writes_to_inputs():
    def f(x):
        def true_fn(x):
            x[0] = 7
            return x * 2

        return cond(x.sum() > 0, true_fn, lambda x: x.cos(), (x,))

    ep = both(f)
    assert ep.graph_signature.user_inputs_to_mutate


def test_writes_to_buffers_in_either_branch():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("up", torch.zeros(4))
            self.register_buffer("down", torch.zeros(()))

        def forward(self, x):
            def true_fn(x):
                self.up.add_(x)
                return x + self.up

            def false_fn(x):
                self.down += 1
                return x * self.down

            return cond(x.sum() > 0, true_fn, false_fn, (x,)) + self.up

    ep = both(Model())
    assert set(ep.graph_signature.buffers_to_mutate.values()) == {"up", "down"}


def test_writes_through_views_from_outside():
    def f(x):
        base = x.clone().view(2, 2)
        row, column = base[0], base[:, 1]

        def true_fn(x):
            row.mul_(3)
            return column + base.t()[0]

        def false_fn(x):
            column.sub_(1)
            return row * 2

        out = cond(x.sum() > 0, true_fn, false_fn, (x,))
        row.add_(1)
        return out, base, column

    both(f)


def test_writes_in_nested_branches():
    def f(x):
        y = x.clone()

        def inner(y):
            y.mul_(2)
            return y.sum()

        def true_fn(y):
            y.add_(1)
            s = cond(y[0] > 1.5, inner, lambda y: y.sum() * 0, (y,))
            return s + y[1]

        return cond(x.sum() > 0, true_fn, lambda y: y[0] * 1, (y,)), y

    check(f, (UP,), others=[(DOWN,), (UP / 4,)])


def test_reads_after_writes_inside_see_them_and_reads_outside_do_not():
    def f(x):
        y = x.clone()
        before = y + 0

        def true_fn(x):
            y.zero_()
            return y + before

        out = cond(x.sum() > 0, true_fn, lambda x: y + 1, (x,))
        return out, before, y

    both(f)


def test_a_literal_that_a_branch_writes_to_is_not_taken_as_it_was():
    def f(x):
        flag = torch.tensor(0)

        def true_fn(x):
            flag.add_(1)
            return x + flag

        out = cond(x.sum() > 0, true_fn, lambda x: x - flag, (x,))
        return cond(flag > 0, lambda x: x * 2, lambda x: x * 3, (out,))

    both(f)


# Results


def test_results_of_all_kinds():
    def f(x):
        return cond(
            x.sum() > 0,
            lambda x: {"a": (x * 2, 1), "b": [None, 2.5, True, "s"], "c": 3},
            lambda x: {"a": (x + 1, 2), "b": [None, 3.5, False, "s"], "c": 3},
            (x,),
        )

    both(f)


def test_numbers_from_branches_go_on():
    def f(x):
        n, s, flag = cond(
            x.sum() > 0,
            lambda x: (2, x.sum().item(), True),
            lambda x: (x.shape[0], 0.5, (x[0] > 5).item()),
            (x,),
        )
        y = torch.zeros(n) + s
        return cond(flag, lambda y: y + 1, lambda y: y - 1, (y,)), n

    both(f)


def test_results_that_are_operands_or_views_of_them():
    both(lambda x: cond(x.sum() > 0, lambda x: x, lambda x: x.view(2, 2).view(4), (x,)))
    both(lambda x: cond(x.sum() > 0, lambda x: (x, x), lambda x: (x, x * 2), (x,)))


def test_results_of_another_layout():
    def f(x):
        return cond(x.sum() > 0, lambda x: x.t(), lambda x: x.t() + torch.zeros(3, 2), (x,))

    check(f, (torch.ones(2, 3),), others=[(-torch.ones(2, 3),)])


def test_results_of_other_sizes_become_a_size_of_the_joint_range():
    def f(x):
        found = cond(x.sum() > 0, lambda x: x[:3], lambda x: x[:1], (x,))
        return found * 2, found.shape[0]

    ep = both(f)
    (call,) = calls(ep, HIGHER.cond)
    (size,) = call.meta["val"][0].shape
    assert [(r.lower, r.upper) for s, r in ep.range_constraints.items() if str(s) == str(size)] == [
        (1, 3)
    ]


def test_results_of_data_dependent_sizes():
    def f(x):
        found = cond(x.sum() > 0, lambda x: x[x > 0], lambda x: x[x < 0], (x,))
        return found * 2, found.shape[0]

    check(
        f,
        (torch.tensor([1.0, 0, 2, 0]),),
        others=[(torch.tensor([-1.0, 0, 0, 0]),), (torch.tensor([0.0, 0, 0, 0]),)],
    )


# Sizes and assertions inside


def test_the_predicate_is_known_in_its_branch():
    def f(x):
        def long(x):
            return x[:4] if x.shape[0] >= 4 else x  # decided: no guard

        return cond(x.shape[0] > 4, long, lambda x: torch.zeros(4, 2), (x,))

    check(f, (torch.randn(3, 2),), dynamic_shapes=({0: N},), others=[(torch.randn(9, 2),)])


def test_a_size_that_the_predicate_fixes():
    def f(x):
        return cond(x.shape[0] == 4, lambda x: x.view(2, 2, -1).sum(), lambda x: x.sum() * 2, (x,))

    check(f, (torch.randn(3, 2),), dynamic_shapes=({0: N},), others=[(torch.randn(4, 2),)])


def test_what_a_branch_knows_of_sizes_stays_in_it():
    def f(x):
        base = x * 2
        view = base.view(-1)
        base.add_(1)  # the view is made again where it is read first: in a branch

        def outer(x):
            return cond(x.shape[0] == 2, lambda: view + x.sum(), lambda: view * 2, ())

        return cond(x.sum() > 0, outer, lambda x: view - 1, (x,)), view

    ep = check(
        f,
        (torch.ones(4),),
        dynamic_shapes=({0: N},),
        others=[(torch.ones(2),), (-torch.ones(3),), (torch.ones(7),)],
    )
    assert str(ep).count("[2]") <= 4  # in the branch for that size alone


def test_an_assertion_of_a_branch_holds_only_there():
    def f(i):
        n = i.item()

        def true_fn(i):
            torch._check(n > 2)
            torch._check(n % 2 == 1)
            return i * n

        out = cond(i > 0, true_fn, lambda i: i - n, (i,))
        return out + n

    ep = check(f, (torch.tensor(3),), others=[(torch.tensor(-4),), (torch.tensor(-1),)])
    for bad in (1, 4):
        with pytest.raises(RuntimeError, match="Runtime assertion failed"):
            ep.module()(torch.tensor(bad))


def test_what_is_learnt_in_a_branch_is_not_used_after_it():
    def f(i, x):
        n = i.item()

        def true_fn(x):
            torch._check(n >= 2)
            torch._check(n <= x.shape[0])
            return x[:2].sum() + n

        out = cond(x.sum() > 0, true_fn, lambda x: x.sum(), (x,))
        return out + cond(i > 1, lambda x: x.sum(), lambda x: x.sum() * 2, (x,))

    check(f, (torch.tensor(2), UP), others=[(torch.tensor(9), DOWN), (torch.tensor(0), DOWN)])


def test_assertions_on_input_sizes_in_a_branch():
    def f(x, y):
        def true_fn(x, y):
            torch._check(x.shape[0] <= y.shape[0])
            return y[: x.shape[0]] + x

        return cond(x.sum() > 0, true_fn, lambda x, y: x * 2, (x, y))

    m = gp.Dim("m", min=2, max=20)
    ep = check(
        f,
        (torch.ones(3), torch.ones(5)),
        dynamic_shapes=({0: N}, {0: m}),
        others=[(-torch.ones(6), torch.ones(5)), (torch.ones(4), torch.ones(4))],
    )
    with pytest.raises(RuntimeError, match="Runtime assertion failed"):
        ep.module()(torch.ones(6), torch.ones(5))


def test_data_dependent_operators_in_a_branch():
    def f(x):
        def true_fn(x):
            n = x.nonzero().shape[0]
            torch._check(n >= 2)
            return x.sum() * n

        return cond(x[0] > 0, true_fn, lambda x: x.sum(), (x,))

    ep = check(
        f,
        (torch.tensor([1.0, 0, 2, 0]),),
        others=[(torch.tensor([-1.0, 0, 0, 0]),), (torch.zeros(4),)],
    )
    inner = ep.graph_module.true_graph_0.graph
    assert any(n.target is torch.ops.aten._assert_scalar.default for n in inner.nodes)
    with pytest.raises(RuntimeError, match="Invalid value range for 1"):
        ep.module()(torch.tensor([1.0, 0, 0, 0]))


def test_facts_stated_before_a_branch_are_asserted_before_it():
    def f(i, x):
        n, m = i[0].item(), i[1].item()
        torch._check(n + m > 3)
        return cond(x.sum() > 0, lambda x: x * n, lambda x: x + m, (x,))

    ep = check(f, (torch.tensor([3, 2]), UP), others=[(torch.tensor([3, 2]), DOWN)])
    assert calls(ep, torch.ops.aten._assert_scalar.default)


# Gradients


def test_gradients_through_the_module():
    model = Closures()
    ep = gp.export(model, (UP,))
    for x in (UP, DOWN):
        ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        model.zero_grad()
        ep.module()(ours).square().sum().backward()
        mine = None if model.weight.grad is None else model.weight.grad.clone()
        model.zero_grad()
        model(theirs).square().sum().backward()
        torch.testing.assert_close(ours.grad, theirs.grad)
        want = torch.zeros(4) if model.weight.grad is None else model.weight.grad
        torch.testing.assert_close(torch.zeros(4) if mine is None else mine, want)


def test_results_say_whether_they_have_gradients():
    def f(x):
        y = cond(x.sum() > 0, lambda: x.sin(), lambda: x.cos(), ())
        assert y.requires_grad
        with torch.no_grad():
            assert not cond(x.sum() > 0, lambda: x.sin(), lambda: x.cos(), ()).requires_grad
        return y

    check(f, (UP.clone().requires_grad_(),), others=[(DOWN.clone().requires_grad_(),)])


# Names


def test_names_of_inputs_win_over_nodes_inside():
    class Model(nn.Module):
        def forward(self, x, mul, mul_1):
            squared = x * x
            return cond(
                squared.sum() > 0,
                lambda x, y, z: x * y * z,
                lambda x, y, z: x + y + z,
                [squared, mul, mul_1],
            )

    ep = check(Model(), (UP, UP, UP), others=[(UP * 0, UP, UP)])
    inner = ep.graph_module.true_graph_0.graph
    assert [(n.name, n.op) for n in inner.nodes] == [
        ("mul_2", "placeholder"),
        ("mul", "placeholder"),
        ("mul_1", "placeholder"),
        ("mul_3", "call_function"),
        ("mul_4", "call_function"),
        ("output", "output"),
    ]


def test_an_input_found_late_bears_the_name_of_its_node():
    def f(x):
        mul = x * 2
        return cond(x.sum() > 0, lambda x: (x * 3).sin() * 4 + mul, lambda x: x + mul, (x,))

    ep = both(f)
    names = [n.name for n in ep.graph_module.true_graph_0.graph.nodes]
    assert names[:2] == ["x", "mul"] and len(set(names)) == len(names)


def test_names_that_clash_with_user_inputs():
    class Model(nn.Module):
        def forward(self, input, true_graph, body_graph):
            from torch._higher_order_ops import map as torch_map

            x = input
            if torch.compiler.is_compiling():
                x = torch_map(lambda x, y: x + y, input, body_graph[0])
            else:
                x = x + body_graph[0]
            x = x + true_graph[0] + true_graph[1]
            x = cond(x.sum() > 0, lambda x: x * 2.0, lambda x: x + 2.0, [x])
            return cond(x.sum() > 0, lambda x: x * 2.0, lambda x: x + 2.0, [x])

    args = (torch.randn(10, 4), (torch.randn(4), torch.randn(4)), (torch.randn(4),))
    ep = check(Model(), args)
    assert [n.name for n in ep.graph.nodes if n.op == "get_attr"] == [
        "body_graph_1",
        "true_graph_2",
        "false_graph_0",
        "true_graph_3",
        "false_graph_1",
    ]


def test_names_that_clash_with_parts_of_the_module():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.true_graph_0 = nn.Linear(4, 4)
            self.register_buffer("false_graph_0", torch.ones(4))
            self.true_graph_1 = torch.ones(4)

        def forward(self, x):
            x = self.true_graph_0(x) + self.false_graph_0 + self.true_graph_1
            return cond(x.sum() > 0, lambda x: x * 2, lambda x: x + 2, (x,))

    both(Model())


def test_one_function_in_several_places():
    def step(x):
        return cond(x.sum() > 2, lambda x: x * 0.5, lambda x: x + 1, (x,))

    ep = both(lambda x: step(step(step(x))))
    assert len(calls(ep, HIGHER.cond)) == 3


def test_the_text_shows_the_graphs_inside():
    text = str(both(lambda x: cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))))
    assert (
        text.splitlines()[1:15]
        == """\
    graph(
        x: f32[4],
    ):
        sum_1: f32[] = aten.sum(x)
        gt: b8[] = aten.gt.Scalar(sum_1, 0)
        true_graph_0 = graph(
            x: f32[4],
        ):
            sin: f32[4] = aten.sin(x)
            return (sin,)
        false_graph_0 = graph(
            x: f32[4],
        ):
            cos: f32[4] = aten.cos(x)""".splitlines()
    )


def test_control_flow_in_a_loop_of_python():
    def f(x):
        for i in range(3):
            x = cond(x[i] > 0, lambda x: x - 1.5, lambda x: x + i, (x,))  # noqa: B023
        return while_loop(lambda x: x.sum() < 10, lambda x: (x + 1,), (x,))[0]

    both(f)
