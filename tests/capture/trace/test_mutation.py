"""Writes: through views and aliases, to inputs, buffers, parameters and constants."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import graphport as gp
from tests.helpers import assert_same, check, clone

aten = torch.ops.aten


def x() -> torch.Tensor:
    return torch.arange(12.0).reshape(3, 4)


def kinds(ep: gp.ExportedProgram) -> list[tuple[str, str | None]]:
    return [(s.kind.name, s.target) for s in ep.graph_signature.output_specs]


def batch_dynamic(fn, size=(3, 4), others=(5, 2)):
    """Static, then with a dynamic batch at other sizes."""
    check(fn, (x(),))
    b = gp.Dim("b", min=2)
    inputs = [(torch.randn(n, *size[1:]),) for n in others]
    return check(fn, (x(),), dynamic_shapes=({0: b},), others=inputs)


# Views


def test_write_through_a_view_changes_its_base():
    def f(v):
        v[0].add_(1)
        v.view(-1)[1] = 5
        v.t().mul_(2)
        return v.sum()

    ep = batch_dynamic(f)
    assert kinds(ep) == [("USER_INPUT_MUTATION", "v"), ("USER_OUTPUT", None)]


def test_write_to_a_base_changes_its_views():
    def f(v):
        y = v * 1
        row, flat, again = y[1], y.view(-1), y.unsqueeze(0).transpose(1, 2)
        y.add_(10)
        return row, flat, again, y

    batch_dynamic(f)


def test_views_of_views_and_siblings():
    def f(v):
        y = v.clone()
        a = y[:, 1:]
        b = a.t()[0]
        c = y.permute(1, 0)[1:, 1]
        b.fill_(7)
        c.mul_(-1)
        a[0, 0] = 3
        return y, a, b, c

    batch_dynamic(f)


def test_a_view_keeps_its_own_value_through_a_chain_of_writes():
    def f(v):
        y = v + 0
        halves = y.chunk(2, dim=1)
        for i, half in enumerate(halves):
            half *= i + 2
            y += 1
        first, *rest = y.unbind(1)
        first.copy_(rest[-1])
        y.diagonal().zero_()
        return y, halves, first

    check(f, (x(),))


@pytest.mark.parametrize(
    "view",
    [
        lambda v: v.as_strided((2, 2), (4, 1), 1),
        lambda v: v[1:].as_strided((2, 2), (1, 4)),
        lambda v: v.t().as_strided((3,), (4,)),
        lambda v: v.unfold(1, 2, 2),
        lambda v: v.unflatten(1, (2, 2)).movedim(2, 0),
        lambda v: v.expand(1, 3, 4)[0],
        lambda v: v.narrow(1, 1, 2).swapaxes(0, 1),
        lambda v: v.squeeze().detach(),
        lambda v: v.data,
        lambda v: v.flatten(),
        lambda v: v.ravel()[::3],
        lambda v: v.view_as(v)[..., None],
        lambda v: v.view(torch.int32),
        lambda v: v.split([1, 3], 1)[1],
        lambda v: v.tensor_split(2)[0],
        lambda v: v.mT,
        lambda v: v.contiguous(),
        lambda v: v.to(torch.float32),
    ],
    ids=lambda f: str(f.__code__.co_firstlineno),
)
def test_every_view_can_be_written_through(view):
    def f(v):
        y = v * 1
        z = view(y)
        z.add_(1)
        view(v).mul_(2)
        return y, z

    check(f, (x(),))


@pytest.mark.parametrize(
    "write", [lambda z: z.fill_(7), lambda z: z[0].mul_(2), lambda z: z[:1, 0].fill_(3)]
)
def test_an_expanded_tensor_viewed_as_the_dtype_that_it_has(write):
    def f(v):
        y = v * 1
        z = y[0].expand(2, 4).view(torch.float32)
        write(z)
        return y, z

    check(f, (x(),))


def test_an_expanded_tensor_viewed_as_another_dtype():
    def f(v):
        y = v * 1
        y[0].expand(2, 4).view(torch.int32)[0].mul_(2)
        return y

    with pytest.raises(gp.errors.MutationError, match="a write through a view as another dtype"):
        gp.export(f, (x(),))


def test_complex_views():
    def f(z):
        z.real.mul_(2)
        z.imag[0] = 5
        torch.view_as_real(z)[..., 1] += 1
        return z * 1j, z.conj(), z.real

    check(f, (torch.view_as_complex(torch.arange(12.0).reshape(3, 2, 2)),))


def test_as_strided_from_before_the_input_is_refused():
    x = torch.arange(20.0)[5:15]
    with pytest.raises(gp.errors.UnsupportedError, match="storage offset before the input"):
        gp.export(lambda x: x.as_strided((2, 2), (1, 2), 0), (x,))
    check(lambda x: x.as_strided((2, 2), (1, 2)), (x,))


def test_as_strided_counts_in_the_memory_of_the_base():
    def f(v):
        y = v.t().contiguous().t() * 1  # columns lie one after the other
        y[0] += 1
        return y.as_strided((5,), (1,)), y[:, 1:].as_strided((2,), (3,)), y

    check(f, (x(),))


# Operators that write


@pytest.mark.parametrize(
    "write",
    [
        lambda y, m: y.add_(2, alpha=3),
        lambda y, m: y.copy_(m),
        lambda y, m: y.fill_(m.sum()),
        lambda y, m: y.masked_fill_(m, 2.0),
        lambda y, m: y.index_fill_(0, torch.tensor([0]), 3.0),
        lambda y, m: y.index_put_((torch.tensor([0, 0]),), torch.ones(4), accumulate=True),
        lambda y, m: y.scatter_(1, torch.zeros(3, 1, dtype=torch.long), 5.0),
        lambda y, m: y.scatter_add_(1, torch.zeros(3, 1, dtype=torch.long), torch.ones(3, 1)),
        lambda y, m: y.clamp_(1, 5),
        lambda y, m: y.clamp_min_(3),
        lambda y, m: y.sqrt_(),
        lambda y, m: y.addmm_(y, torch.eye(4)),
        lambda y, m: y.baddbmm_ and y.neg_(),
        lambda y, m: y.div_(2, rounding_mode="floor"),
        lambda y, m: y.eq_(3),
        lambda y, m: y.logical_not_(),
        lambda y, m: y.cumsum_(1),
        lambda y, m: y.tril_(),
        lambda y, m: y.fill_diagonal_(9.0),
        lambda y, m: y.lerp_(m.float(), 0.5),
        lambda y, m: y.addcdiv_(y, y + 1),
        lambda y, m: y.where(m, y).zero_(),
        lambda y, m: y.index_copy_(0, torch.tensor([1]), torch.zeros(1, 4)),
        lambda y, m: y.put_(torch.tensor([1, 2]), torch.zeros(2)),
        lambda y, m: y.masked_scatter_(m, torch.zeros(12)),
        lambda y, m: y.renorm_(2, 0, 1.0),
        lambda y, m: torch.nn.functional.relu(y, inplace=True),
        lambda y, m: torch.nn.functional.hardtanh_(y),
        lambda y, m: torch.nn.init.constant_(y, 3.0),
    ],
    ids=lambda f: str(f.__code__.co_firstlineno) + f.__code__.co_names[0],
)
def test_operators_that_write(write):
    def f(v, m):
        y = v[:, :].clone()
        write(y[:], m)
        return y

    check(f, (x(), x() % 2 == 0))


def test_python_operators_that_write():
    def f(v, n, m):
        v += 1
        v -= 2
        v *= 3
        v /= 2
        v //= 1
        v **= 2
        v %= 7
        n <<= 1
        n >>= 2
        n |= 1
        n &= 6
        n ^= 5
        m |= n > 2
        return v, n, m

    check(f, (x(), torch.arange(6), torch.zeros(6, dtype=torch.bool)))


def test_out():
    def f(v):
        o = torch.empty(3, 4)
        torch.add(v, 1, out=o)
        torch.mul(o, 2, out=o[:])
        values, indices = torch.empty(3), torch.empty(3, dtype=torch.long)
        torch.max(v, 1, out=(values, indices))
        torch.sin(v, out=v)
        empty = torch.empty(0)
        torch.cat([v, o], out=empty)
        return o, values, indices, empty, v

    check(f, (x(),))


def test_a_write_is_converted_to_the_dtype_written_to():
    def f(i, v):
        i.add_(True)
        i[0] = 2.9
        i.copy_(v)
        v[1] = i[1]
        v.mul_(torch.ones((), dtype=torch.float64))
        return i, v

    check(f, (torch.arange(4), torch.arange(4) + 0.5))


def test_shape_changed_in_place():
    def f(v):
        y = v * 1
        z = y[0]
        y.unsqueeze_(0).transpose_(1, 2)
        y.squeeze_()
        y.t_()
        y.add_(1)
        return y, z, y.shape[0]

    check(f, (x(),))


# Inputs


def test_input_mutation_is_written_back():
    def f(v, w):
        v.add_(w)
        w.mul_(2)
        return v * w

    ep = check(f, (x(), x()))
    assert kinds(ep)[:2] == [("USER_INPUT_MUTATION", "v"), ("USER_INPUT_MUTATION", "w")]
    assert ep.graph_signature.user_inputs_to_mutate == {"add": "v", "mul": "w"}


def test_a_mutated_input_that_is_returned_is_the_callers_tensor():
    def f(v):
        v.add_(1)
        return v, v * 2

    module = check(f, (x(),)).module()
    given = x()
    out, _ = module(given)
    assert out is given or out.data_ptr() == given.data_ptr()


def test_writing_what_was_there_is_no_mutation_of_others():
    ep = check(lambda v, w: (v.copy_(w), w.clone().add_(1))[1], (x(), x() + 1))
    assert kinds(ep) == [("USER_INPUT_MUTATION", "v"), ("USER_OUTPUT", None)]


def test_nested_inputs_are_written_back():
    def f(d, *rest):
        d["cache"][0][:, 1] = rest[0]
        rest[1].zero_()
        return d["cache"][0].sum()

    check(f, ({"cache": [x()]}, torch.ones(3), torch.ones(2)))


def test_key_value_cache_with_dynamic_length():
    def f(cache, new, position):
        cache[:, position] = new
        cache.index_copy_(1, position + 1, new * 2)
        return cache.sum(1)

    b = gp.Dim("b")
    args = (torch.zeros(2, 5, 3), torch.ones(2, 1, 3), torch.tensor([2]))
    other = (torch.zeros(4, 5, 3), torch.ones(4, 1, 3), torch.tensor([1]))
    check(f, args, dynamic_shapes=({0: b}, {0: b}, None), others=[other])


# State


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("loose", torch.zeros(4), persistent=False)
        self.plain = torch.zeros(4)

    def forward(self, v):
        self.count += 1
        self.loose[1:] += v[0, 1:]
        self.plain.add_(v[1])
        return v * self.count + self.loose + self.plain


def test_buffers_carry_over_from_run_to_run():
    model = Counter()
    ep = check(model, (x(),))
    assert set(ep.graph_signature.buffers_to_mutate.values()) == {"count", "loose", "plain"}
    module, eager = ep.module(), Counter()
    for _ in range(3):
        assert_same(module(x()), eager(x()), "results differ")
    # Neither the program nor the user's model has changed.
    assert ep.state_dict["count"] == 0 and model.count == 0 and not model.plain.any()
    assert_same(ep.module()(x()), Counter()(x()), "results differ")


def test_a_buffer_that_is_assigned_to():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("a", torch.arange(4.0))
            self.register_buffer("b", torch.ones(4))

        def forward(self, v):
            old = self.a
            self.a, self.b = self.b, self.a + v[0]
            self.b *= 2
            return old, self.a + 1, self.b

    ep = check(Model(), (x(),))
    module, eager = ep.module(), Model()
    for _ in range(3):
        assert_same(module(x()), eager(x()), "results differ")


def test_a_buffer_of_another_size_is_refused():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(1, 4))

        def forward(self, v):
            self.seen = torch.cat([self.seen, v])
            return self.seen

    with pytest.raises(gp.errors.UserError, match="buffer 'seen' was replaced") as caught:
        gp.export(Model(), (x(),))
    assert "test_mutation.py" in str(caught.value)


def test_parameters_are_written_without_gradients():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 4)

        def forward(self, v):
            with torch.no_grad():
                self.lin.weight.mul_(0.5)
            return self.lin(v)

    ep = check(Model(), (x(),))
    assert kinds(ep)[0] == ("PARAMETER_MUTATION", "lin.weight")


def test_state_that_shares_memory():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("whole", torch.arange(6.0))
            self.register_buffer("part", self.whole[2:4])
            self.register_buffer("same", self.whole)
            self.register_buffer("turned", self.whole.view(2, 3).t())

        def forward(self, v):
            self.part.add_(v)
            self.turned[0] = 7
            self.whole[3] *= 2
            return self.whole, self.part, self.same, self.turned

    check(Model(), (torch.ones(2),))


class Shared(nn.Module):
    """State that overlaps in memory, and a forward that writes to some of it."""

    def __init__(self, state, write):
        super().__init__()
        for name, t in state.items():
            if name.startswith("plain"):
                setattr(self, name, t)
            else:
                self.register_buffer(name, t)
        self.write = write

    def forward(self, v):
        self.write(self)
        return [v.sum() + t for t in (*self.buffers(), getattr(self, "plain", v))]


def test_a_plain_attribute_that_shares_memory_with_a_buffer():
    for write in (lambda m: m.buf.add_(1), lambda m: m.plain.add_(1)):
        buf = torch.zeros(3, 4)
        check(Shared({"buf": buf, "plain": buf[1]}, write), (x(),))


def test_state_that_overlaps_and_is_no_view_is_not_written_to():
    memory, pair = torch.zeros(4), torch.zeros(3, dtype=torch.complex64)
    turned = torch.zeros(3, 4).t()
    cases = {
        "beyond": {"a": memory[:3], "b": memory[1:]},
        "other dtype": {"a": pair, "b": torch.view_as_real(pair)},
        "of one that is not contiguous": {"a": turned, "b": turned[1]},
    }
    for state in cases.values():
        with pytest.raises(gp.errors.MutationError, match="share memory"):
            gp.export(Shared(state, lambda m: m.a.add_(1)), (x(),))
        check(Shared(state, lambda m: None), (x(),))


def test_state_side_by_side_in_one_memory_is_written_to():
    memory = torch.zeros(4, 6)
    check(Shared({"a": memory[:, :3], "b": memory[:, 3:]}, lambda m: m.a.add_(1)), (x(),))


def test_inputs_that_overlap_are_not_written_to_and_then_read():
    same, memory = torch.ones(4), torch.ones(4)

    def read_later(a, b):
        a.add_(1)
        return a * b

    for inputs in ((same, same), (memory[:3], memory[1:])):
        with pytest.raises(gp.errors.MutationError, match="share memory"):
            gp.export(read_later, inputs)
    check(read_later, (memory[:2], memory[2:]))

    def read_before(a, b):
        first = b * 2
        return first + a[0], a.add_(1)[1:]

    check(read_before, (same, same))


def test_training_layers_update_their_statistics():
    for layer in (
        nn.BatchNorm2d(3),
        nn.BatchNorm2d(3, track_running_stats=False),
        nn.BatchNorm2d(3, affine=False),
        nn.InstanceNorm2d(3, track_running_stats=True),
    ):
        ep = check(layer.train(), (torch.randn(4, 3, 5, 5),), rtol=1e-4, atol=1e-4)
        mutated = set(ep.graph_signature.buffers_to_mutate.values())
        assert mutated >= {n for n, _ in layer.named_buffers() if n.startswith("running")}
        check(layer.eval(), (torch.randn(4, 3, 5, 5),), rtol=1e-4, atol=1e-4)


def test_literals_are_made_anew_on_each_run():
    def f(v):
        k = torch.tensor([1.0, 2.0, 3.0, 4.0])
        k += v[0]
        k[1] = 7
        return k

    module = check(f, (x(),)).module()
    for _ in range(2):
        assert_same(module(x()), f(x()), "results differ")


def test_tensors_from_outside_are_never_written():
    kept = torch.zeros(4)

    def f(v):
        kept.add_(v[0])
        return kept * 2

    ep = gp.export(f, (x(),))
    assert not kept.any()
    module = ep.module()
    want = [x()[0] * 2, x()[0] * 4]
    assert_same([module(x()), module(x())], want, "results differ")


# What cannot be written as a value


def resize(v):
    return (v * 1).resize_(2, 2)


def set_(v):
    return (v * 1).set_(v)


def set_data(v):
    y = v * 1
    y.data = v + 1
    return y


def turn_input(v):
    return v.t_()


def too_small(v):
    return v.add_(torch.ones(2, 3, 4))


def wrong_out(v):
    return torch.add(v, 1, out=torch.empty(7))


def cast(v):
    return v.long().add_(1.5)


@pytest.mark.parametrize("f", [resize, set_, set_data, turn_input, too_small, wrong_out, cast])
def test_refused(f):
    given = x()
    with pytest.raises(gp.errors.MutationError) as caught:
        gp.export(f, (given,))
    assert f"test_mutation.py:{f.__code__.co_firstlineno + 1}" in str(caught.value).replace(
        f":{f.__code__.co_firstlineno + 2}", f":{f.__code__.co_firstlineno + 1}"
    )
    assert_same(given, x(), "the input changed")


def test_programs_are_functional():
    def f(v, w):
        v[:, 1:] += w[:, :-1]
        w[w > 3] = 0
        torch.exp(v, out=w)
        return v, w

    ep = check(f, (x(), x()))
    assert all(
        not getattr(n.target, "_schema", None) or not n.target._schema.is_mutable
        for n in ep.graph.nodes
    )


def test_the_example_inputs_are_not_written():
    given = x()
    before = clone(given)
    gp.export(lambda v: v.add_(1), (given,))
    assert_same(given, before, "the input changed")


STORAGE = torch.ones(4).untyped_storage()


def set_storage(v):
    return (v * 1).set_(STORAGE, 0, (2,), (1,))


class Turning(nn.Linear):
    def forward(self, v):
        return self.weight.t_() + v.sum()


def out_beyond_a_view_of_an_input(v):
    return torch.add(v, 1, out=v[:0])


@pytest.mark.parametrize("f", [Turning(2, 3).requires_grad_(False), out_beyond_a_view_of_an_input])
def test_other_memory_of_what_the_caller_sees_is_refused(f):
    with pytest.raises(gp.errors.MutationError, match=r"test_mutation\.py"):
        gp.export(f, (x(),))


def test_storage_of_a_tensor_is_refused():
    with pytest.raises(gp.errors.MutationError, match=r"set_\(\) replaces the storage of a tensor"):
        gp.export(set_storage, (x(),))


DROPOUTS = ["dropout", "alpha_dropout", "dropout2d", "feature_alpha_dropout"]


@pytest.mark.parametrize("name", DROPOUTS)
def test_dropout_in_place(name):
    dropout = getattr(nn.functional, name)
    image = torch.randn(2, 3, 4, 4)
    for p, training in ((0.5, False), (0.0, True), (0.5, True)):
        # What it returns is the tensor itself, also where nothing is dropped.
        ep = check(lambda v, p=p, t=training: (dropout(v, p, t, inplace=True).add_(1), v), (image,))
        assert ("USER_INPUT_MUTATION", "v") in kinds(ep)


def test_a_deep_copy_is_a_tensor_of_its_own():
    def f(v, w):
        y, (z, again) = copy.deepcopy(v * 2), copy.deepcopy([w, w])
        z.add_(1)
        return y.add_(1), z, again is z, w

    check(f, (x(), x()))
    ep = gp.export(lambda v: copy.deepcopy(v) + v, (x().requires_grad_(),))
    given = x().requires_grad_()
    ep.module()(given).sum().backward()
    assert_same(given.grad, torch.ones(3, 4), "the copy has a gradient")


def test_data_of_itself():
    """What Module.to(...) does where there is nothing to convert."""

    def f(v):
        y = v * 2
        y.data = y
        return y.add_(1)

    check(f, (x(),))
    check(lambda v: nn.Linear(4, 2).requires_grad_(False).zero_grad() or v + 1, (x(),))


def test_tensors_made_from_tensors():
    check(lambda v: (torch.as_tensor(v).add_(1), v), (x(),))
    check(lambda v: (torch.as_tensor(v, dtype=torch.float64).add_(1), v), (x(),))
    check(lambda v: torch.as_tensor([v.sum(), 2, v.mean()]), (x(),))
    check(lambda v: torch.as_tensor([v.sum() > 3, True]), (x(),))
    batch_dynamic(lambda v: torch.as_tensor([[v.shape[0], v[0, 0].long()], [1, 2]]))


def test_a_number_is_copied_to_a_tensor():
    batch_dynamic(lambda v: (v[1:].copy_(3), v.clone().copy_(v.shape[0]), v))
    check(lambda v: v.long().copy_(2.5), (x(),))


def test_operators_on_lists_of_tensors_write_to_each():
    def f(v):
        y = v * 2
        torch._foreach_add_([y, v[:1]], 1)
        torch._foreach_mul_([y], 3)
        return y, v

    batch_dynamic(f)


def test_the_diagonal_of_a_matrix_without_elements():
    def f(v):
        y = v * 2
        y.fill_diagonal_(7)
        return y

    b, c = gp.Dim("b"), gp.Dim("c")
    others = [(torch.randn(n, m),) for n, m in ((0, 3), (3, 0), (1, 1), (1, 4), (5, 2))]
    check(f, (x(),), dynamic_shapes=({0: b, 1: c},), others=others)
    check(lambda v: v.expand(3, 3, 3).clone().fill_diagonal_(7), (torch.randn(3, 3),))
    check(lambda v: v.repeat(2, 1).fill_diagonal_(7, wrap=True), (torch.randn(3, 2),))
