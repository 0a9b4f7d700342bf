"""Random programs of views, writes and indexing: captured and eager must agree.

A program is Python source, built a line at a time. Each line is tried in eager at every batch size
that the test uses and kept if it runs there, so programs are valid by construction and a failing
example prints as code that can be pasted.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import graphport as gp
from tests.capture.programs import compiled
from tests.helpers import assert_same, check, clone

BATCHES = (5, 7, 4)  # the example, then others


class Program(nn.Module):
    """State of every kind, and a forward made of source lines."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.arange(12.0).reshape(3, 4))
        self.register_buffer("loose", torch.arange(6.0).reshape(2, 3) - 2, persistent=False)
        self.plain = torch.linspace(-1, 1, 8).reshape(2, 4)
        self.lines: list[str] = []

    def forward(self, x, y, z):
        return self.body(self, x, y, z)

    def finish(self, lines: list[str], names: list[str]) -> None:
        text = source_of(lines, names)
        self.body = compiled(text, f"<program {abs(hash(text))}>")["body"]


def source_of(lines: list[str], names: list[str]) -> str:
    body = "".join(f"    {line}\n" for line in lines)
    return f"def body(self, x, y, z):\n{body}    return {', '.join(names)},\n"


def inputs(batch: int) -> tuple[torch.Tensor, ...]:
    x = torch.arange(batch * 12.0).reshape(batch, 3, 4) % 7 - 3
    y = torch.arange(batch * 3.0).reshape(3, batch).t() % 5 - 2  # not contiguous
    real = torch.arange(batch * 4.0).reshape(batch, 2, 2) % 3 - 1
    return x, y, torch.view_as_complex(real)


@dataclass
class Draft:
    """A program in the making, with its variables in eager at every batch size."""

    batches: tuple[int, ...]
    lines: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=lambda: ["x", "y", "z", "k", "p", "q"])
    spaces: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.prefix = ["k, p, q = self.kept, self.plain, self.loose"]
        self.restart()

    def restart(self) -> None:
        self.spaces = []
        for batch in self.batches:
            space = {"self": Program(), "torch": torch}
            space.update(zip("xyz", inputs(batch), strict=True))
            for line in (*self.prefix, *self.lines):
                exec(line, space)
            self.spaces.append(space)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.spaces[0][name].shape)

    def attempt(
        self, line: str, new: str | None = None, writes: str | None = None, buffer: bool = False
    ) -> bool:
        """Keep the line if eager runs it at every size."""
        if buffer:
            made = [s[line.split()[-1]] for s in self.spaces]
            if any(t.shape != (3, 4) or t.dtype is not torch.float32 for t in made):
                return False
        if writes is not None and not all(_separate(s[writes]) for s in self.spaces):
            return False
        try:
            for space in self.spaces:
                exec(line, space)
        except (RuntimeError, IndexError, ValueError, TypeError, UserWarning):
            self.restart()
            return False
        if new is not None:
            made = [space[new] for space in self.spaces]
            if len({t.dim() for t in made}) > 1 or max(t.numel() for t in made) > 2000:
                self.restart()
                return False
            self.names.append(new)
        self.lines.append(line)
        return True


def _separate(t: torch.Tensor) -> bool:
    """No two elements share memory: what a write to them would do is not defined."""
    if not t.numel():
        return True
    span = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    places = torch.arange(span).as_strided(t.shape, t.stride())
    return places.unique().numel() == t.numel()


# One function per family of lines: given the shape of a variable, text with {t} for the variable.


@st.composite
def views(draw: st.DrawFn, shape: tuple[int, ...], is_complex: bool) -> str:
    rank = len(shape)
    dims = st.integers(-rank, rank - 1) if rank else st.just(0)
    d = draw(dims)
    choices = ["unsqueeze", "detach", "reshape", "expand", "squeeze", "alias", "T"]
    if rank:
        choices += [
            "select",
            "slice",
            "narrow",
            "flatten",
            "view",
            "unbind",
            "split",
            "chunk",
            "unfold",
            "split_sizes",
            "split_list",
            "as_strided",
            "ravel",
        ]
    if rank > 1:
        choices += ["permute", "transpose", "movedim", "diagonal", "mT", "swapdims"]
    if is_complex:
        choices += ["real", "imag", "as_real"] * 2
    size = shape[d] if rank else 1
    match draw(st.sampled_from(choices)):
        case "unsqueeze":
            return f"{{t}}.unsqueeze({draw(st.integers(-rank - 1, rank))})"
        case "detach":
            return draw(st.sampled_from(["{t}.detach()", "{t}.data", "{t}.contiguous()"]))
        case "alias":
            return draw(
                st.sampled_from(
                    [
                        "{t}.view_as({t})",
                        "{t}.to({t}.dtype)",
                        "{t}[...]",
                        "{t}[:]" if rank else "{t}[()]",
                    ]
                )
            )
        case "T":
            return "{t}.permute(*range({t}.dim() - 1, -1, -1))"
        case "reshape":
            return draw(
                st.sampled_from(
                    [
                        "{t}.reshape(-1)",
                        "{t}.reshape({t}.shape)",
                        "{t}.reshape(1, -1)",
                        "{t}.reshape({t}.shape[0], -1)",
                        "{t}.reshape(-1, {t}.shape[-1])",
                        "{t}.reshape(*{t}.shape, 1)",
                        "{t}.reshape({t}.numel())",
                    ]
                )
            )
        case "view":
            return draw(
                st.sampled_from(
                    [
                        "{t}.view(-1)",
                        "{t}.view({t}.shape[0], -1)",
                        "{t}.view(1, *{t}.shape)",
                        "{t}.view(-1, {t}.shape[-1])",
                        "{t}.view({t}.shape[0], 1, -1)",
                    ]
                )
            )
        case "ravel":
            return "{t}.ravel()"
        case "expand":
            return draw(
                st.sampled_from(
                    [
                        "{t}.expand(2, *{t}.shape)",
                        "{t}.expand({t}.shape)",
                        f"{{t}}.unsqueeze({d}).expand_as({{t}}.unsqueeze({d}))",
                    ]
                )
            )
        case "squeeze":
            return draw(st.sampled_from(["{t}.squeeze()", f"{{t}}.squeeze({d})"]))
        case "select":
            return f"{{t}}.select({d}, {draw(st.integers(-size, max(size - 1, 0)))})"
        case "slice":
            start, stop = draw(st.integers(-size, size)), draw(st.integers(-size, size + 2))
            step = draw(st.integers(1, 3))
            return f"torch.ops.aten.slice({{t}}, {d}, {start}, {stop}, {step})"
        case "narrow":
            start = draw(st.integers(0, max(size - 1, 0)))
            return f"{{t}}.narrow({d}, {start}, {draw(st.integers(0, size - start))})"
        case "flatten":
            return f"{{t}}.flatten({d}, {draw(dims)})"
        case "unbind":
            return f"{{t}}.unbind({d})[{draw(st.integers(-1, 1))}]"
        case "split":
            return f"{{t}}.split({draw(st.integers(1, size + 1))}, {d})[{draw(st.integers(-1, 1))}]"
        case "split_sizes":
            first = draw(st.integers(0, size))
            which = draw(st.integers(0, 1))
            return f"{{t}}.split([{first}, {{t}}.shape[{d}] - {first}], {d})[{which}]"
        case "split_list":
            return f"{{t}}.tensor_split(2, {d})[{draw(st.integers(0, 1))}]"
        case "chunk":
            return f"{{t}}.chunk({draw(st.integers(1, 3))}, {d})[{draw(st.integers(-1, 1))}]"
        case "unfold":
            return (
                f"{{t}}.unfold({d}, {draw(st.integers(1, max(size, 1)))}, "
                f"{draw(st.integers(1, 3))})"
            )
        case "as_strided":
            return draw(
                st.sampled_from(
                    [
                        "{t}.as_strided((2, 2), (2, 1))",
                        "{t}.as_strided((2,), (1,), 1)",
                        "{t}.as_strided((2, 2), (1, 2), 0)",
                        "torch.as_strided({t}, (3,), (2,))",
                    ]
                )
            )
        case "permute":
            return f"{{t}}.permute({', '.join(map(str, draw(st.permutations(range(rank)))))})"
        case "transpose":
            return f"{{t}}.transpose({d}, {draw(dims)})"
        case "swapdims":
            return f"{{t}}.swapaxes({d}, {draw(dims)})"
        case "movedim":
            return f"{{t}}.movedim({d}, {draw(dims)})"
        case "diagonal":
            return f"{{t}}.diagonal({draw(st.integers(-1, 1))}, {d}, {draw(dims)})"
        case "mT":
            return "{t}.mT"
        case "real":
            return "{t}.real"
        case "imag":
            return "{t}.imag"
        case _:
            return "torch.view_as_real({t})"


@st.composite
def index(draw: st.DrawFn, shape: tuple[int, ...]) -> str:
    """What stands in the brackets."""
    if draw(st.integers(0, 5)) == 0:
        return draw(
            st.sampled_from(
                [
                    "{t} > 0",
                    "...",
                    "({t} > 0).any(-1)",
                    "({t} == 1)",
                    "None",
                    "True",
                    "..., {t}.sum((-1,)) > 0",
                    "({t} < 0).nonzero(as_tuple=True)",
                ]
            )
        )
    parts: list[str] = []
    left = list(shape)
    ellipsis = False
    while left and draw(st.integers(0, 4)):
        size = left[0]
        kind = draw(st.sampled_from(["int", "slice", "slice", "list", "tensor", "none", "dots"]))
        if kind == "none":
            parts.append("None")
            if len(parts) > 5:
                break
            continue
        if kind == "dots":
            if ellipsis:
                continue
            ellipsis = True
            parts.append("...")
            left = left[draw(st.integers(0, len(left))) :]
            continue
        left.pop(0)
        top = max(size - 1, 0)
        entry = st.integers(-size, top)
        if kind == "int":
            parts.append(str(draw(entry)))
        elif kind == "slice":
            bound = st.none() | st.integers(-size, size + 1)
            a, b, step = draw(bound), draw(bound), draw(st.sampled_from([None, None, 1, 2, 3]))
            text = f"{'' if a is None else a}:{'' if b is None else b}"
            parts.append(text + (f":{step}" if step else ""))
        else:
            values = draw(st.lists(entry, min_size=1, max_size=3, unique=True))
            if len({v % size for v in values if size}) != len(values):
                values = values[:1]  # a place written twice: the order is not defined
            text = str(values)
            parts.append(text if kind == "list" else f"torch.tensor({text})")
    return ", ".join(parts) if parts else "..."


def scalar() -> st.SearchStrategy[str]:
    return st.sampled_from(["0.5", "2", "-1.5", "3"])


@st.composite
def operand(draw: st.DrawFn, draft: Draft, target: str) -> str:
    """Something to write: a number, or a tensor that may broadcast; never overlapping memory."""
    if draw(st.booleans()):
        return draw(scalar())
    name = draw(st.sampled_from(draft.names))
    return f"{name}.clone()" if name != target else name


@st.composite
def writes(draw: st.DrawFn, draft: Draft, t: str) -> str:
    shape = draft.shape(t)
    at = draw(index(shape)).format(t=t)
    value = draw(operand(draft, t))
    number = draw(scalar())
    rank = len(shape)
    d = draw(st.integers(-rank, rank - 1)) if rank else 0
    return draw(
        st.sampled_from(
            [
                f"{t}.add_({value})",
                f"{t}.mul_({number})",
                f"{t} += {value}",
                f"{t} *= {number}",
                f"{t}.sub_({value}, alpha=2)",
                f"{t}.copy_({value} * torch.ones(()))",
                f"{t}.fill_({number})",
                f"{t}.zero_()",
                f"{t}.masked_fill_({t} > 0, {number})",
                f"{t}.clamp_(-1, 2)",
                f"{t}.clamp_(min=-1)",
                f"{t}.sin_()",
                f"{t}.div_({number})",
                f"{t}[{at}] = {number}",
                f"{t}[{at}] += {number}",
                f"{t}[{at}] = {t}[{at}] * {number}",
                f"{t}[{at}] *= {number}",
                f"{t}[{at}] = {value}",
                f"{t}[{t} > 0] = {number}",
                f"{t}[..., 1:] += {number}",
                f"{t}[..., :1] = {value}",
                f"{t}[::2] -= {number}",
                f"{t}.index_put_((torch.tensor([0, 1]),), torch.tensor({number}))",
                f"{t}.index_put_((torch.tensor([0, 0]),), torch.tensor(1.0), accumulate=True)",
                f"{t}.index_fill_({d}, torch.tensor([0]), {number})",
                f"{t}.index_add_({d}, torch.tensor([1, 0]), {t}.clone().narrow({d}, 0, 2))",
                f"{t}.scatter_({d}, torch.zeros_like({t}, dtype=torch.int64).narrow({d}, 0, 1), "
                f"{number})",
                f"torch.add({t}, {number}, out={t})",
                f"torch.mul({value}, {number} * {t}, out={t})",
                f"{t}.addcmul_({t}, {t}, value=0.5)",
                f"{t}.lerp_({t}.clone() + 1, 0.5)",
                f"{t}.relu_()",
                f"torch.nn.functional.leaky_relu({t}, inplace=True)",
                f"{t}.masked_scatter_({t} > 0, {t}.clone())",
                f"{t}.cumsum_({d})",
                f"{t}.fill_diagonal_({number})",
                f"{t}.triu_()",
                f"{t}.neg_()",
            ]
        )
    )


@st.composite
def fresh(draw: st.DrawFn, draft: Draft, t: str) -> str:
    other = draw(st.sampled_from(draft.names))
    return draw(
        st.sampled_from(
            [
                f"{t}.clone()",
                f"{t} * 2",
                f"{t} + {other}",
                f"{t}.sum(-1)",
                f"{t}.cumsum(0)",
                f"torch.zeros_like({t})",
                f"torch.stack([{t}, {t}])",
                f"torch.cat([{t}, {other}])",
                f"torch.where({t} == 0, {other}, {t})",
            ]
        )
    )


def _reshapes(t: str) -> list[str]:
    """Writes to the shape of a tensor."""
    return [
        f"{t}.unsqueeze_(0)",
        f"{t}.squeeze_()",
        f"{t}.transpose_(0, -1)",
        f"{t}.t_()",
        f"{t}.swapdims_(0, -1)",
    ]


@st.composite
def programs(draw: st.DrawFn, batches: tuple[int, ...], longest: int) -> Draft:
    draft = Draft(batches)
    count = draw(st.integers(1, longest))
    fresh_names = (f"t{i}" for i in itertools.count())
    for _ in range(count):
        t = draw(st.sampled_from(draft.names[::-1]))
        kind = draw(
            st.sampled_from(
                ["view", "view", "view", "write", "write", "write", "index", "new", "reshape"]
            )
        )
        if kind == "view":
            text = draw(views(draft.shape(t), draft.spaces[0][t].is_complex()))
            name = next(fresh_names)
            draft.attempt(f"{name} = {text.format(t=t)}", new=name)
        elif kind == "index":
            name = next(fresh_names)
            at = draw(index(draft.shape(t))).format(t=t)
            draft.attempt(f"{name} = {t}[{at}]", new=name)
        elif kind == "new" and draft.shape(t) == (3, 4) and draw(st.booleans()):
            draft.attempt(f"self.kept = {t}", buffer=True)
        elif kind == "new":
            name = next(fresh_names)
            draft.attempt(f"{name} = {draw(fresh(draft, t))}", new=name)
        elif kind == "reshape" and t.startswith("t") and not _is_view(draft, t):
            draft.attempt(draw(st.sampled_from(_reshapes(t))), writes=t)
        else:
            draft.attempt(draw(writes(draft, t)), writes=t)
    return draft


def _is_view(draft: Draft, name: str) -> bool:
    return draft.spaces[0][name]._is_view() or any(
        draft.spaces[0][other] is draft.spaces[0][name] for other in draft.names if other != name
    )


# What depends on sizes that are open, and is refused rather than guessed.
REFUSED = (
    "but a copy at others",
    "which is ambiguous at the sizes of the example",
    "of a tensor with internal overlap, has no functional form",
)


def agree(draft: Draft, dynamic: bool) -> str:
    """Compare with eager. Says how it ended, where refusing is right too."""
    model = Program()
    model.finish([*draft.prefix, *draft.lines], draft.names)
    b = gp.Dim("b", min=2)
    shapes = {"x": {0: b}, "y": {0: b}, "z": {0: b}} if dynamic else None
    others = [inputs(n) for n in draft.batches[1:]] if dynamic else []
    try:
        ep = check(model, inputs(BATCHES[0]), dynamic_shapes=shapes, others=others, layout=False)
    except gp.errors.ConstraintViolationError:
        # A line with a number in it may well be right at every size tried and still need more of
        # the batch than its Dim says.
        assert dynamic
        return "constraint"
    except gp.errors.DataDependentError:
        assert any("> 0" in line or "== 1" in line or "< 0" in line for line in draft.lines)
        return "data"
    except (gp.errors.MutationError, gp.errors.UnsupportedError) as error:
        if not dynamic or not any(text in str(error) for text in REFUSED):
            raise
        return "refused"
    except RuntimeError as error:
        # What cannot be said by a Dim is checked when the program runs, and may refuse a size.
        if not dynamic or not str(error).startswith("Runtime assertion failed"):
            raise
        return "assertion"
    _run_twice(ep, draft)
    return "agree"


def _run_twice(ep: gp.ExportedProgram, draft: Draft) -> None:
    """The second run sees what the first left in the state, plain attributes included."""
    model = Program()
    model.finish([*draft.prefix, *draft.lines], draft.names)
    module = ep.module()
    for _ in range(2):
        ours, theirs = clone(inputs(BATCHES[0])), clone(inputs(BATCHES[0]))
        try:
            want = model(*theirs)
        except (RuntimeError, IndexError):
            return  # the state is other data now, and a mask of it may select nothing
        assert_same(module(*ours), want, "results differ")
        assert_same(ours, theirs, "inputs are left differently")


pytestmark = pytest.mark.filterwarnings("ignore:Python reads:graphport.errors.CaptureWarning")
COMMON = {"suppress_health_check": list(HealthCheck), "print_blob": False}


@settings(max_examples=60, **COMMON)
@given(programs(BATCHES[:1], 8))
def test_static(draft):
    agree(draft, dynamic=False)


@settings(max_examples=60, **COMMON)
@given(programs(BATCHES, 8))
def test_dynamic(draft):
    agree(draft, dynamic=True)


@pytest.mark.slow
@settings(max_examples=4000, **COMMON)
@given(programs(BATCHES[:1], 20))
def test_static_long(draft):
    agree(draft, dynamic=False)


@pytest.mark.slow
@settings(max_examples=4000, **COMMON)
@given(programs(BATCHES, 20))
def test_dynamic_long(draft):
    agree(draft, dynamic=True)
