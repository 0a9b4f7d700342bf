"""Writes through tensors that share memory: right as in eager, or refused."""

from __future__ import annotations

import copy
import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphport as gp

n, m = gp.Dim("n"), gp.Dim("m")


def agrees(run: Callable[..., Any], fn: Callable[..., Any], *inputs: Tensor) -> None:
    """Results and what has become of the inputs."""
    ours, eager = copy.deepcopy(inputs), copy.deepcopy(inputs)
    torch.testing.assert_close(run(*ours), fn(*eager))
    torch.testing.assert_close(ours, eager)


def check(fn: Callable[..., Any], *inputs: Tensor, spec: Any = None) -> Any:
    """Captured, decomposed, saved and loaded."""
    program = gp.export(fn, copy.deepcopy(inputs), dynamic_shapes=spec)
    file = io.BytesIO()
    gp.save(program, file)
    file.seek(0)
    for made in (program, program.run_decompositions(), gp.load(file)):
        agrees(made.module(), fn, *inputs)
    return program


def write_row(v: Tensor) -> None:
    v[0] = 7


@contextmanager
def refusal() -> Iterator[None]:
    """Where a program may refuse a layout, or sizes at which layouts are ambiguous."""
    try:
        yield
    except RuntimeError as error:
        if not re.search(
            "to have strides|to have storage offset 0|Runtime assertion failed", str(error)
        ):
            raise


# One element that is several: expand, unfold, as_strided


def expanded(x: Tensor) -> Any:
    base = x * 1
    v = base.expand(2, 3)
    write_row(v)
    return v + 0, base + 0


def broadcast(x: Tensor) -> Any:
    base = x * 1
    v = torch.broadcast_to(base, (4, 3))
    v[1, 1:] += 5
    return v, base


def broadcast_tensors(x: Tensor) -> Any:
    a, b = torch.broadcast_tensors(x * 1, torch.zeros(2, 1))
    a[0, 2] = 5
    b[0].fill_(3)
    return a, b


def expand_as(x: Tensor) -> Any:
    base = x * 1
    v = base.expand_as(torch.zeros(2, 3))
    v.select(1, 0)[1] = 4
    return v.t() + 0, base


def meshgrid(x: Tensor) -> Any:
    a, b = torch.meshgrid(x * 1, x * 2, indexing="ij")
    a[0, 0] = 5
    return a + 0, b + 0


def expanded_input(x: Tensor) -> Any:
    v = x.expand(2, 3)
    v[0, 1:] = 7
    return v + 0


def windows(x: Tensor) -> Any:
    base = x * 1
    w = base.unfold(0, 2, 1)
    w[1] = 9
    return base, w + 0


def strided(x: Tensor) -> Any:
    base = x * 1
    w = base.as_strided((2, 2), (1, 1))
    w[0] = 9
    return base, w + 0


def views_in_between(x: Tensor) -> Any:
    base = x * 1
    v = base.expand(2, 3).t().unsqueeze(0)
    v[0, 1, 1] = 6
    v[0, :, 0].mul_(3)
    return base, v + 0


@pytest.mark.parametrize(
    "fn",
    [
        expanded,
        broadcast,
        broadcast_tensors,
        expand_as,
        meshgrid,
        expanded_input,
        windows,
        strided,
        views_in_between,
    ],
)
def test_elements_that_share_memory(fn: Callable[..., Any]) -> None:
    check(fn, torch.randn(3))


def test_elements_that_share_memory_at_open_sizes() -> None:
    def fn(x: Tensor) -> Any:
        base = x.sum(0)
        v = base.expand(x.shape[0], x.shape[1])
        write_row(v)
        return v + 0, base

    run = check(fn, torch.randn(4, 3), spec=({0: n, 1: m},)).module()
    for sizes in ((2, 5), (5, 1), (7, 3)):
        agrees(run, fn, torch.randn(sizes))


@pytest.mark.parametrize(
    "fn",
    [lambda v: v.add_(1), lambda v: v.copy_(torch.zeros(2, 3)), lambda v: v[:, 1].mul_(3)],
    ids=["add", "copy", "part"],
)
def test_a_write_to_several_elements_in_one_place(fn: Callable[[Tensor], Tensor]) -> None:
    def program(x: Tensor) -> Tensor:
        v = (x * 1).expand(2, 3)
        fn(v)
        return v

    x = torch.randn(3)
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        program(x)
    with pytest.raises(gp.errors.MutationError, match="more than one element") as caught:
        gp.export(program, (x,))
    assert "test_aliasing.py" in str(caught.value)


def test_an_input_of_which_elements_share_memory() -> None:
    x = torch.randn(1, 3).expand(4, 3)

    def fn(x: Tensor) -> Tensor:
        write_row(x)
        return x + 0

    with pytest.raises(gp.errors.MutationError, match="more than one element of the input"):
        gp.export(fn, (x,))
    run = gp.export(fn, (x.clone(),)).module()
    agrees(run, fn, x.clone())
    with pytest.raises(RuntimeError, match="no internal overlap"):
        run(x)
    program = gp.onnx.export(fn, (x.clone(),))
    with pytest.raises(RuntimeError, match="no internal overlap"):
        program(x)


# Copies and views by the layout of memory


def flatten_input(x: Tensor) -> Tensor:
    y = x.flatten()
    y.mul_(10)
    return x + 0


def flatten_result(x: Tensor) -> Tensor:
    z = x * 2
    z.reshape(-1).mul_(10)
    return z


def read_flattened(x: Tensor) -> Tensor:
    z = x * 2
    y = z.ravel()
    z.mul_(10)
    return y


def contiguous(x: Tensor) -> Tensor:
    x.contiguous().mul_(10)
    return x + 0


def turned(x: Tensor) -> Tensor:
    v = x * 1
    y = v.T.flatten()
    y += 1
    return v


@pytest.mark.parametrize("fn", [flatten_input, flatten_result, read_flattened, contiguous, turned])
def test_views_that_another_layout_makes_copies(fn: Callable[..., Any]) -> None:
    run = check(fn, torch.randn(3, 4), spec=({0: n, 1: m},)).module()
    for x in (
        torch.randn(5, 2),
        torch.randn(4, 3).t(),
        torch.randn(1, 4),
        torch.randn(4, 1),
        torch.randn(0, 4),
        torch.randn(6, 8)[::2, ::2],
    ):
        with refusal():
            agrees(run, fn, x)
    agrees(run, fn, torch.randn(5, 2))


def test_views_that_channels_last_makes_copies() -> None:
    def fn(x: Tensor) -> Tensor:
        x.to(memory_format=torch.channels_last).mul_(10)
        return x + 0

    plain, last = (
        torch.randn(2, 3, 4, 4).to(memory_format=form)
        for form in (torch.contiguous_format, torch.channels_last)
    )
    for example, other in ((plain, last), (last, plain)):
        run = check(fn, example, spec=({0: n},)).module()
        with pytest.raises(RuntimeError, match="to have strides"):
            run(other.clone())


def test_copies_that_another_layout_makes_views_of_one_tensor() -> None:
    """A write to one shows in the other, although neither is a view of the other."""

    def fn(x: Tensor) -> Tensor:
        z = x * 1
        one, other = z.flatten(0, 1), z.reshape(-1)
        other[:1].fill_(7)
        return one

    run = check(fn, torch.randn(3, 4, 2).transpose(0, 1)).module()
    with pytest.raises(RuntimeError, match="to have strides"):
        run(torch.randn(4, 3, 2))


def test_strides_that_are_read_after_a_write() -> None:
    """Those of eager, although the written value lies otherwise in the graph."""

    def fn(x: Tensor) -> Tensor:
        x.unfold(-1, 2, 2).add_(2)
        y = x.diff(dim=0)
        return y.as_strided(y.shape, y.stride())

    check(fn, torch.randn(5, 4, 5).permute(1, 2, 0))


def test_a_diagonal_without_elements_begins_where_its_tensor_does() -> None:
    def fn(x: Tensor) -> Tensor:
        x.diagonal(1).as_strided((1,), (1,)).add_(2)
        return x * 1

    check(fn, torch.randn(2, 1))


def test_memory_with_gaps() -> None:
    """Whether flatten is a view is a matter of the strides here, and those of the sizes."""

    def make(rows: int, columns: int) -> Tensor:
        return torch.ones(rows, columns, 2)[..., 0]

    with pytest.raises(gp.errors.MutationError, match=r"say which is meant|view of it"):
        gp.export(flatten_input, (make(3, 4),), dynamic_shapes=({0: n, 1: m},))
    run = gp.export(flatten_input, (make(3, 4),)).module()
    agrees(run, flatten_input, make(3, 4))
    with pytest.raises(RuntimeError, match="to have strides"):
        run(torch.ones(3, 4))


def test_a_layout_that_makes_no_difference_is_not_asked_for() -> None:
    def fn(x: Tensor) -> Tensor:
        v = (x * 2).reshape(-1)
        v += 1
        v *= x.shape[0]
        return v

    run = gp.export(fn, (torch.randn(3, 4),), dynamic_shapes=({0: n, 1: m},)).module()
    for x in (torch.randn(4, 3).t(), torch.randn(1, 4), torch.randn(0, 4)):
        agrees(run, fn, x)


def test_a_layout_that_the_program_gives_itself_is_not_asked_for() -> None:
    def fn(x: Tensor) -> Tensor:
        z = x.clone(memory_format=torch.contiguous_format)
        z.flatten().mul_(10)
        return z

    run = gp.export(fn, (torch.randn(3, 4),), dynamic_shapes=({0: n, 1: m},)).module()
    agrees(run, fn, torch.randn(4, 3).t())


# Inputs that share memory at the call


def write_one(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    return y * 2


def test_one_tensor_for_two_inputs() -> None:
    run = gp.export(write_one, (torch.ones(3), torch.ones(3))).module()
    base = torch.randn(8)
    agrees(run, write_one, base[:3], torch.ones(3))
    with pytest.raises(RuntimeError, match=r"share no memory.*\*args\[1\]"):
        run(base[:3], base[:3])
    with pytest.raises(RuntimeError, match="share no memory"):
        run(base[:3], base[2:5])
    run(base[:3], base[3:6])
    run(base[0:6:2], base[1:6:2])


def test_one_tensor_for_two_inputs_of_an_onnx_program() -> None:
    program = gp.onnx.export(write_one, (torch.ones(3), torch.ones(3)))
    x = torch.ones(3)
    with pytest.raises(RuntimeError, match="share no memory"):
        program(x, x)


def test_a_program_that_writes_to_nothing_takes_one_tensor_twice() -> None:
    run = gp.export(lambda x, y: x + y, (torch.ones(3), torch.ones(3))).module()
    x = torch.randn(3)
    assert torch.equal(run(x, x), x + x)


def test_the_training_form_writes_as_eager_does() -> None:
    run = gp.export(write_one, (torch.ones(3), torch.ones(3)), training=True).module()
    ours, eager = torch.ones(3), torch.ones(3)
    assert torch.equal(run(ours, ours), write_one(eager, eager))


def test_an_input_that_is_state_of_the_module() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            self.total.add_(1)
            return x * 2

    model = Model()
    with pytest.raises(gp.errors.MutationError, match="share memory"):
        gp.export(model, (model.total,))


def test_inputs_that_are_read_before_the_write() -> None:
    def fn(x: Tensor, y: Tensor) -> Any:
        first = y * 2
        return first + x[0], x.add_(1)[1:]

    same = torch.randn(4)
    program = gp.export(fn, (same, same))
    file = io.BytesIO()
    gp.save(program, file)
    file.seek(0)
    for made in (program, program.run_decompositions(), gp.load(file)):
        ours, eager = same.clone(), same.clone()
        torch.testing.assert_close(made.module()(ours, ours), fn(eager, eager))
        assert torch.equal(ours, eager)


def test_a_refusal_names_the_line_that_writes() -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)  # this line
        return y

    same = torch.randn(4)
    with pytest.raises(gp.errors.MutationError, match=r"x.add_\(1\)  # this line"):
        gp.export(fn, (same, same))


# Numbers of the layout: stride() and as_strided


@pytest.mark.parametrize(
    "fn",
    [
        lambda y: y.as_strided(y.shape, y.stride()),
        lambda y: y[1:].as_strided((2, 2), (1, 1)),
        lambda y: y.as_strided((2, 2), (1, 1), 1),
        lambda y: (y.as_strided((2,), (1,)).fill_(2), y + 0)[1],
        lambda y: y * y.stride(0),
    ],
    ids=["stride", "part", "offset", "written", "number"],
)
def test_what_depends_on_strides(fn: Callable[..., Any]) -> None:
    run = check(fn, torch.randn(4)).module()
    agrees(run, fn, torch.randn(4))
    base = torch.randn(8)
    for y in (base[3:7], base[::2]):
        with refusal():
            got = run(y)
            torch.testing.assert_close(got, fn(y))


def test_memory_from_an_offset_on() -> None:
    fn = lambda y: y.as_strided((2, 2), (1, 1), 1)
    run = gp.export(fn, (torch.randn(4),)).module()
    with pytest.raises(RuntimeError, match="storage offset of 3"):
        run(torch.randn(7)[3:])


def test_memory_between_elements_is_not_read_after_a_write() -> None:
    def fn(z: Tensor) -> Tensor:
        between = z.as_strided((2, 2), (1, 1))
        z.add_(2)
        return between

    with pytest.raises(gp.errors.MutationError, match="not dense"):
        gp.export(fn, (torch.rand(4, 8)[:, ::2],))


def test_memory_around_a_tensor_is_not_read_after_a_write() -> None:
    def fn(z: Tensor) -> Tensor:
        z.neg_()
        return z.as_strided((2,), (1,))

    with pytest.raises(gp.errors.MutationError, match="beyond the elements of an input"):
        gp.export(fn, (torch.rand(3)[1],))


def test_memory_around_a_tensor_of_other_sizes() -> None:
    """At the sizes of the example as_strided looks at nothing but the tensor."""

    def fn(x: Tensor) -> Tensor:
        view = x.as_strided((2, 2), (1, 1))
        x.add_(1)
        return view

    run = gp.export(fn, (torch.rand(1, 3),), dynamic_shapes=({1: gp.Dim.AUTO},)).module()
    torch.testing.assert_close(run(torch.ones(1, 4)), fn(torch.ones(1, 4)))
    with pytest.raises(RuntimeError, match="Expected input"):
        run(torch.rand(1, 4)[:, :2])


def test_the_memory_of_a_convolution_at_sizes_of_1() -> None:
    """Of one channel an input lies in order, whatever its strides, and so does the result."""

    def fn(x: Tensor) -> Tensor:
        weight = torch.ones(2, x.shape[1], 1)
        return nn.functional.conv1d(x, weight).as_strided((2,), (1,))

    make = lambda channels: torch.rand(4, 4, channels).permute(0, 2, 1)
    dims = ({1: gp.Dim.AUTO},)
    x, y = make(3), make(1)
    run = gp.export(fn, (x,), dynamic_shapes=dims).module()
    torch.testing.assert_close(run(x), fn(x))
    with pytest.raises(RuntimeError, match="s0 != 1 does not hold for s0 = 1"):
        run(y)
    torch.testing.assert_close(gp.export(fn, (y,)).module()(y), fn(y))


def test_an_input_with_gaps_keeps_its_dims_open() -> None:
    b = gp.Dim("b", min=2, max=4)
    y = torch.randint(0, 9, (2, 8))[:, ::2]

    def fn(y: Tensor) -> Tensor:
        return y.index_put_((torch.tensor([-2, -1]),), torch.tensor(2))

    program = gp.export(fn, (y,), dynamic_shapes=({1: 2 * b},))
    assert {str(e): (r.lower, r.upper) for e, r in program.range_constraints.items()} == {
        "b": (2, 4),
        "2*b": (4, 8),
    }
    agrees(program.module(), fn, torch.randint(0, 9, (2, 8)))


def test_a_copy_of_memory_with_gaps_that_is_a_view_of_dense_memory() -> None:
    def fn(x: Tensor) -> Tensor:
        x.reshape(-1)[:1].fill_(3)
        return x + 0

    run = gp.export(fn, (torch.rand(6, 3)[::2],)).module()
    agrees(run, fn, torch.rand(6, 3)[::2])
    with pytest.raises(RuntimeError, match="to have strides"):
        run(torch.rand(3, 3))


def test_a_branch_on_the_layout() -> None:
    run = gp.export(lambda z: z + 1 if z.is_contiguous() else z * 2, (torch.rand(3, 4),)).module()
    with pytest.raises(RuntimeError, match="to have strides"):
        run(torch.rand(4, 3).t())


def test_another_dtype_of_elements_that_share_memory() -> None:
    def fn(x: Tensor) -> Tensor:
        t = torch.broadcast_tensors(x, 2 * x)[0]
        t.real.add_(1)
        return t

    with pytest.raises(gp.errors.MutationError, match="another dtype"):
        gp.export(fn, (torch.randn(3, dtype=torch.complex64),))


def test_windows_that_overlap_are_not_scattered_to() -> None:
    def fn(x: Tensor) -> Tensor:
        windows = x.unfold(0, 2, 1)
        return windows.select_scatter(windows[0] * 2, 0, 1)

    with pytest.raises(gp.errors.MutationError, match="scattered to"):
        gp.export(fn, (torch.rand(5),))


def test_as_strided_of_memory_with_gaps_that_was_written_to() -> None:
    def fn(x: Tensor) -> Tensor:
        x.add_(2)
        return x.as_strided(x.shape, x.stride())

    with pytest.raises(gp.errors.MutationError, match="read after a write"):
        gp.export(fn, (torch.rand(4, 4)[:, 1:],))


def test_a_branch_on_the_layout_of_something_computed() -> None:
    """A tensor of one element is contiguous, and one that has none, whatever its strides."""

    def fn(x: Tensor) -> Tensor:
        return x * 2 if x.t().is_contiguous() else x * 3

    spec = ({0: gp.Dim("a"), 1: gp.Dim("b")},)
    run = gp.export(fn, (torch.rand(3, 4),), dynamic_shapes=spec).module()
    agrees(run, fn, torch.rand(2, 5))
    for sizes in ((1, 2), (2, 1), (0, 2), (2, 0)):
        with pytest.raises(RuntimeError, match="!="):
            run(torch.rand(sizes))


def test_a_branch_on_a_layout_that_data_decides() -> None:
    def fn(x: Tensor) -> Tensor:
        return x * 2 if x.nonzero().is_contiguous() else x * 3

    with pytest.raises(gp.errors.DataDependentError, match="nonzero"):
        gp.export(fn, (torch.rand(3, 4),))


def test_an_input_that_overlaps_itself_is_not_scattered_to() -> None:
    fn = lambda x: x.diagonal_scatter(x.diagonal() * 2)
    with pytest.raises(gp.errors.MutationError, match="scattered to"):
        gp.export(fn, (torch.rand(6).as_strided((2, 4), (1, 1)),))
    repeated = torch.rand(1, 4).expand(3, 4)
    agrees(gp.export(fn, (repeated,)).module(), fn, repeated)


def test_a_view_of_memory_that_lies_otherwise_once_it_was_written() -> None:
    """What a write computes is in another order than what it was written to."""

    def fn(y: Tensor) -> tuple[Tensor, Tensor]:
        t = y * 2
        windows = t.unfold(1, 2, 1)
        as_rows = windows.reshape(1, *windows.shape)
        windows.narrow(3, 0, 1).add_(3)
        as_rows[None] = as_rows[None] * 2
        return t, as_rows.unsqueeze(0).view(-1) * 2

    y = torch.randint(-4, 9, (3, 2, 1)).permute(2, 1, 0)
    program = gp.export(fn, (y,))
    agrees(program.module(), fn, y)
    agrees(program.run_decompositions().module(), fn, y)


def test_an_order_of_dims_that_is_one_of_their_sizes() -> None:
    """Of dims that overlap, what is computed has the longer one last in memory."""

    def fn(x: Tensor) -> Tensor:
        t = x * 2
        t.contiguous().add_(2)
        return t

    make = lambda n: torch.rand(4 + n).as_strided((4, n), (1, 1))
    run = gp.export(fn, (make(5),), dynamic_shapes=({1: gp.Dim("n")},)).module()
    agrees(run, fn, make(6))
    for size in (2, 4):
        with pytest.raises(RuntimeError, match="n >= 5"):
            run(make(size))


def test_a_copy_of_an_input_that_another_one_is_written_over() -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        rows = y.flatten()
        x.add_(2)
        return rows

    run = gp.export(fn, (torch.rand(3, 2), torch.rand(3, 2).t())).module()
    agrees(run, fn, torch.rand(3, 2), torch.rand(3, 2).t())
    shared = torch.rand(6)
    with pytest.raises(RuntimeError, match="memory"):
        run(shared.view(3, 2), shared.view(2, 3))


def test_as_strided_of_what_is_computed_from_memory_with_gaps_that_was_written() -> None:
    def fn(x: Tensor) -> Tensor:
        x[0] += 2
        t = x.select_scatter(x[0] * 2, 0, 1)
        t.as_strided((2,), (1,)).fill_(3)
        return t

    with pytest.raises(gp.errors.MutationError, match="as_strided"):
        gp.export(fn, (torch.rand(5, 6)[:, ::2],))


def test_a_write_through_as_strided_beyond_the_tensor() -> None:
    def fn(x: Tensor) -> Tensor:
        x.as_strided((2,), (1,)).fill_(3)
        return x + 0

    with pytest.raises(gp.errors.MutationError, match="write through as_strided beyond"):
        gp.export(fn, (torch.rand(3)[1],))


def test_one_tensor_for_two_inputs_of_a_program_captured_again() -> None:
    """The graph of a program writes at its end, and no longer shows what was read after."""

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return y * 2

    args = (torch.ones(3), torch.ones(3))
    again = gp.export(gp.export(f, args).module(), args)
    assert again.module()(torch.ones(3), torch.ones(3)).tolist() == [2, 2, 2]
    one = torch.ones(3)
    with pytest.raises(RuntimeError, match="memory"):
        again.module()(one, one)


# Memory that as_strided looks at


def test_what_lies_in_memory_is_decided_by_no_operator() -> None:
    """Layouts of results may be others once operators are taken apart."""

    def f(x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.elu(x)
        z = y.as_strided(y.shape, y.stride())
        y.mul_(2)
        z.addcmul_(z.clone(), z.clone(), value=0.5)
        return y

    x = torch.rand(4, 4, 1, 5).permute(2, 0, 3, 1)
    ep = gp.export(f, (x,))
    for program in (ep, ep.run_decompositions(), gp.onnx.export(ep)):
        call = program.module() if isinstance(program, gp.ExportedProgram) else program
        torch.testing.assert_close(call(x.clone()), f(x.clone()))


def test_as_strided_of_a_copy_that_is_none_at_some_sizes() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.permute(1, 2, 0).reshape(x.shape[1], -1).as_strided((2, 2), (1, 1))

    spec = ({2: gp.Dim("b")},)
    with pytest.raises(gp.errors.MutationError, match="as_strided of a tensor that is a view"):
        gp.export(f, (torch.rand(2, 2, 1),), dynamic_shapes=spec)
    module = gp.export(f, (torch.rand(2, 2, 3),), dynamic_shapes=spec).module()
    x = torch.rand(2, 2, 4)
    assert torch.equal(module(x), f(x))
    with pytest.raises(RuntimeError, match="b != 1"):
        module(torch.rand(2, 2, 1))


@pytest.mark.parametrize(
    "fn",
    [
        lambda y: y.conj().as_strided((2,), (2,)),
        lambda y: y[1:].conj().as_strided((2,), (1,)),
        lambda y: y.conj()[1:].as_strided((2,), (1,)),
        lambda y: y.conj().imag.as_strided((2,), (2,)),
    ],
)
def test_as_strided_of_a_conjugate(fn: Callable[[Tensor], Tensor]) -> None:
    y = torch.randn(4, dtype=torch.complex64)
    torch.testing.assert_close(gp.export(fn, (y,)).module()(y), fn(y))


@pytest.mark.parametrize(
    "fn",
    [
        lambda y: y.resolve_conj(),
        lambda y: y.conj().resolve_conj(),
        lambda y: y.conj()[1:].resolve_conj(),
        lambda y: y.conj().conj().resolve_conj(),
        lambda y: y.conj().resolve_neg(),
        lambda y: y.conj().imag.resolve_neg(),
        lambda y: y.imag.resolve_neg(),
    ],
)
def test_resolving_a_sign_copies_what_has_one(fn: Callable[[Tensor], Tensor]) -> None:
    def both(y: Tensor) -> Tensor:
        z = fn(y)
        y.real.add_(1)
        y.imag.add_(1)
        return z

    y = torch.randn(4, dtype=torch.complex64)
    for program in (gp.export(both, (y.clone(),)), gp.export(both, (y,)).run_decompositions()):
        torch.testing.assert_close(program.module()(y.clone()), both(y.clone()))


def test_as_strided_of_a_conjugate_with_gaps() -> None:
    def fn(y: Tensor) -> Tensor:
        z = y.conj()
        return z.as_strided(z.shape, z.stride())

    y = torch.randn(8, dtype=torch.complex64)[::2]
    torch.testing.assert_close(gp.export(fn, (y,)).module()(y), fn(y))
