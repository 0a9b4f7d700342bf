"""Random small programs with random specs of their sizes, as source that can be pasted.

A program is written a line at a time from tables of templates. Each line is tried in eager at the
example and at a few other sizes: it must run at the example, and may fail elsewhere, but seldom
does, so that most programs can be exported. What differs between two ways through a program shows
in its results: every branch sets a mark of its own, returned beside the tensors.
"""

from __future__ import annotations

import itertools
import linecache
import random
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

import graphport as gp

Shapes = tuple[tuple[int, ...], ...]

# What stands in braces: {t} a tensor, {u} another one, {v} one of the same shape at the example,
# {w} one that may be written to, {d} {e} dims of the tensor at hand, {n} {m} sizes, {b} {c} bounds,
# {p} a padding, {i} an index, {j} one of the first few sizes, {k} a factor, {a} a number, {q} {r}
# conditions.

VIEWS = {
    0: ["{t}.reshape(1)", "{t}.reshape(-1)", "{t}[None]"],
    1: [
        "{t}.reshape(-1)",
        "{t}.view(-1)",
        "{t}.flatten()",
        "{t}.reshape({t}.shape[0], -1)",
        "{t}.reshape(-1, {t}.shape[-1])",
        "{t}.reshape(-1, {k})",
        "{t}.reshape({k}, -1)",
        "{t}.view({t}.shape[0], -1)",
        "{t}.view(-1, {k})",
        "{t}.reshape({n}, -1)",
        "{t}.reshape(-1, {n})",
        "{t}.reshape({n}, {m})",
        "{t}.view({t}.numel())",
        "{t}.reshape({t}.numel() // {k}, {k})",
        "{t}.unflatten({d}, (-1, {k}))",
        "{t}.unflatten({d}, ({k}, -1))",
        "{t}.unflatten({d}, ({n}, -1))",
        "{t}.view(1, -1)",
        "{t}[{c}:]",
        "{t}[:{c}]",
        "{t}[{b}:{c}]",
        "{t}[{n}:]",
        "{t}[:{n}]",
        "{t}[{n}:{m}]",
        "{t}[-{n}:]",
        "{t}[:-{n}]",
        "{t}[{c}:{n}]",
        "{t}[{n}:{c}]",
        "{t}[::{k}]",
        "{t}[{c}::{k}]",
        "{t}[{b}:{c}:{k}]",
        "{t}[:{n}:{k}]",
        "{t}[..., {c}:]",
        "{t}[..., :{c}]",
        "{t}[..., {n}:]",
        "{t}[..., :{n}]",
        "{t}[..., ::{k}]",
        "{t}[..., {b}:{c}]",
        "{t}[{n}:{n} + {k}]",
        "{t}.narrow({d}, {j}, {n})",
        "{t}.narrow({d}, {n}, {k})",
        "{t}.narrow({d}, 0, {n})",
        "{t}.narrow({d}, {k}, {t}.shape[{d}] - {k})",
        "{t}.select({d}, {i})",
        "{t}[{i}]",
        "{t}[{n}]",
        "{t}[-1]",
        "{t}[{t}.shape[0] - 1]",
        "{t}[{t}.shape[0] // 2]",
        "{t}.select({d}, {n})",
        "{t}.unsqueeze({d})",
        "{t}.squeeze({d})",
        "{t}.squeeze()",
        "{t}[None, {c}:]",
        "{t}.split({k}, {d})[0]",
        "{t}.split({k}, {d})[-1]",
        "{t}.split({n}, {d})[0]",
        "{t}.split({n}, {d})[-1]",
        "{t}.split([{j}, {t}.shape[{d}] - {j}], {d})[1]",
        "{t}.split([{n}, {m}], {d})[0]",
        "{t}.chunk({k}, {d})[0]",
        "{t}.chunk({k}, {d})[-1]",
        "{t}.tensor_split({k}, {d})[-1]",
        "{t}.tensor_split({k}, {d})[0]",
        "{t}.tensor_split(({c},), {d})[1]",
        "{t}.tensor_split(({b}, {n}), {d})[1]",
        "{t}.unbind({d})[-1]",
        "{t}.movedim({d}, 0)",
        "{t}.swapaxes({d}, -1)",
    ],
    2: [
        "{t}.transpose({d}, {e})",
        "{t}.mT",
        "{t}.flatten({d}, {e})",
        "{t}.diagonal()",
        "{t}.diagonal({c})",
        "{t}[:, {c}:]",
        "{t}[{c}:, {n}:]",
        "{t}[{i}, {c}:]",
        "{t}[:, {i}]",
        "{t}.reshape({t}.shape[1], {t}.shape[0])",
        "{t}.flatten(0, 1)",
        "{t}.reshape({t}.shape[0] * {t}.shape[1], -1)",
        "{t}.reshape({t}.shape[0], 1, -1)",
    ],
}

# Views in which an element may appear twice.
REPEATS = {
    0: ["{t}.expand({n})", "{t}.expand({n}, {k})"],
    1: [
        "{t}.expand({n}, *{t}.shape)",
        "{t}.expand({n}, {t}.shape[-1])",
        "{t}.expand_as({u})",
        "{t}.unsqueeze({d}).expand_as({u})",
        "torch.broadcast_to({t}, {u}.shape)",
        "torch.broadcast_tensors({t}, {u})[0]",
        "{t}.unfold({d}, {k}, {j} + 1)",
        "{t}.unfold({d}, {n}, {k})",
        "{t}.expand({t}.shape)",
    ],
    2: ["{t}.expand(-1, {n})", "{t}.expand({n}, -1)", "{t}.narrow({d}, 0, 1).expand_as({t})"],
}

FRESH = {
    0: [
        "{t} * 2",
        "{t} + {n}",
        "{t} - {u}",
        "{t} + {v}",
        "torch.maximum({t}, {u})",
        "{t}.relu()",
        "torch.where({t} > 0, {t}, {u})",
        "{t} * {v}",
        "{t}.clone()",
        "{t}.sum()",
        "{t}.mean()",
        "{t}.clamp(min=-{n})",
        "torch.stack([{t}, {v}])",
        "torch.stack([{t}, {t} + 1], -1)",
        "torch.zeros({n})",
        "torch.ones({n}, {k}) * 3",
        "torch.arange({n}) * 1.0",
        "torch.arange({n}, {m}) * 1.0",
        "torch.arange({j}, {n}, {k}) * 1.0",
        "torch.full(({n},), 2.5)",
        "torch.full(({k},), 1.0 * {n})",
        "torch.eye({n})",
        "{t}.new_ones({n}, {m})",
        "torch.linspace(0, 1, {n})",
        "torch.tensor(1.0 * {n})",
        "torch.zeros({n}, {m}) + {t}.sum()",
        "torch.ones_like({t})",
        "torch.arange({n}).sum() * 1.0",
        "torch.full((), {n}) * 1.0",
        "{t} / ({n} + 1)",
        "{t}.repeat({n})",
        "{t} * ({n} // {k})",
    ],
    1: [
        "{t}.sum({d})",
        "{t}.sum({d}, keepdim=True)",
        "{t}.amax({d})",
        "{t}.amin({d}, keepdim=True)",
        "{t}.mean({d})",
        "{t}.argmax({d}) * 1.0",
        "{t}.prod({d})",
        "{t}.cumsum({d})",
        "{t}.softmax({d})",
        "{t}.sort({d}).values",
        "{t}.topk({k}, {d}).values",
        "{t}.flip({d})",
        "{t}.topk({n}, {d}).values",
        "{t}.max({d}).values",
        "{t}.max()",
        "{t}.argmin() * 1.0",
        "{t}.roll({c}, {d})",
        "{t}.roll({n}, {d})",
        "{t}.all({d}) * 1.0",
        "{t}.var({d})",
        "{t}.logsumexp({d})",
        "{t}.median({d}).values",
        "{t}.kthvalue({k}, {d}).values",
        "{t}.norm(dim={d})",
        "torch.cat([{t}, {u}], {d})",
        "torch.cat([{t}, {v}], {d})",
        "torch.cat([{t}, {t}[{c}:]])",
        "torch.cat([{t}[:{n}], {t}[{n}:]])",
        "torch.cat([{t}.new_zeros({n}, *{t}.shape[1:]), {t}])",
        "torch.stack([{t}, {v}], {d})",
        "F.pad({t}, ({p}, {p}))",
        "F.pad({t}, ({n}, {p}))",
        "F.pad({t}, (0, {n} - {t}.shape[-1]))",
        "F.pad({t}, (-{j}, {p}))",
        "{t}.tile(({k},))",
        "{t}.tile(({n},))",
        "{t}.repeat_interleave({k}, {d})",
        "{t}.repeat_interleave({n}, {d})",
        "{t}.unsqueeze({d}) + {u}",
        "{t}.reshape(-1)[:, None] * {t}.reshape(-1)",
        "{t}.narrow({d}, 0, 1) + {t}",
        "{t}[:1] * {t}",
        "{t}[{c}:] - {t}[:{b}]",
        "{t}[[0, -1]]",
        "{t}[[{i}]]",
        "{t}[torch.arange({n})]",
        "{t}[torch.tensor([0, {i}])]",
        "{t}[torch.arange({t}.shape[0] - 1, -1, -1)]",
        "{t}[torch.tensor([{n}])]",
        "{t}.index_select({d}, torch.arange({n}))",
        "{t}.index_select({d}, torch.tensor([0]))",
        "{t}.gather({d}, torch.zeros_like({t}, dtype=torch.int64))",
        "{t}.gather({d}, {t}.argsort({d}))",
        "{t}.take(torch.arange({n}))",
        "{t}.take(torch.tensor([{i}]))",
        "torch.take_along_dim({t}, {t}.argsort({d}), {d})",
        "{t}.index_add({d}, torch.tensor([0]), {t}.narrow({d}, 0, 1))",
        "{t} @ {t}.mT",
        "{t}.scatter({d}, torch.zeros_like({t}, dtype=torch.int64), 1.5)",
        "{t} @ {u}",
        "{t}.index_fill({d}, torch.tensor([{i}]), 9.0)",
        "torch.atleast_2d({t})",
        "F.linear({t}, torch.ones(2, {t}.shape[-1]))",
        "torch.outer({t}.reshape(-1), {t}.reshape(-1))",
        "F.layer_norm({t}, ({t}.shape[-1],))",
        "F.one_hot(torch.arange({n}), {m}) * 1.0",
        "torch.cartesian_prod({t}.reshape(-1), torch.arange({k}) * 1.0)",
        "{t}.diff(dim={d})",
        "torch.meshgrid({t}.reshape(-1), torch.arange({n}) * 1.0, indexing='ij')[0].clone()",
        "torch.searchsorted(torch.arange({n}) * 1.0, {t}) * 1.0",
        "torch.diag_embed({t})",
        "F.pad({t}[None, None].flatten(1, -2), ({j}, {j}), mode='reflect')",
        "F.pad({t}[None, None].flatten(1, -2), ({j}, {j}), mode='replicate')",
        "F.pad({t}[None, None].flatten(1, -2), ({j}, {j}), mode='circular')",
        "torch.vander({t}.reshape(-1), {k})",
        "F.normalize({t}, dim={d})",
        "{t}.unfold({d}, {k}, 1).sum(-1)",
        "{t}.cummax({d}).values",
    ],
    2: [
        "{t}.sum(({d}, {e}))",
        "{t}.tril()",
        "{t}.triu({c})",
        "{t} @ {t}.new_ones({t}.shape[-1], {k})",
        "{t}.reshape({t}.shape[0], -1) @ {t}.reshape({t}.shape[0], -1).mT",
        "{t}.mT.reshape(-1)",
        "torch.bmm({t}[None].flatten(0, -3), {t}[None].flatten(0, -3).mT)",
        "{t}.mT @ {t}",
        "torch.einsum('...ij->...ji', {t}).contiguous()",
        "torch.einsum('...ij,...ij->...i', {t}, {v})",
        "torch.cdist({t}, {t})",
        "{t}[:, [0]]",
        "{t}[torch.arange({n}), 0]",
        "{t}.repeat({k}, *{t}.shape)",
        "F.pad({t}, (0, {p}, {p}, 0))",
        "F.avg_pool1d({t}, {k})",
        "F.max_pool1d({t}, {k}, {j} + 1)",
        "F.avg_pool1d({t}, {k}, {k}, ceil_mode=True)",
        "F.adaptive_avg_pool1d({t}, {k})",
        "F.adaptive_max_pool1d({t}, {k})",
        "F.adaptive_avg_pool1d({t}, {n})",
        "F.conv1d({t}[None].flatten(0, -3), torch.ones(2, {t}.shape[-2], {k}), stride={j} + 1)",
        "F.conv1d({t}[None].flatten(0, -3), torch.ones(1, {t}.shape[-2], {k}), padding={j})",
        "F.conv_transpose1d({t}[None].flatten(0, -3), torch.ones({t}.shape[-2], 1, {k}))",
        "F.conv2d({t}[None].flatten(0, -3)[:, None], torch.ones(1, 1, {k}, {k}), stride={k})",
        "F.unfold({t}[None].flatten(0, -3)[:, None], {k}, stride={j} + 1)",
        "F.max_pool2d({t}[None].flatten(0, -3)[:, None], {k}, ceil_mode=True)",
        "F.interpolate({t}[None].flatten(0, -3), size={n})",
        "F.interpolate({t}[None].flatten(0, -3), scale_factor=2)",
        "F.pixel_shuffle({t}[None, None].expand(1, 4, *{t}.shape[-2:]), 2)",
        "{t}.rot90(1, ({d}, {e}))",
        "F.group_norm({t}, {k})",
        "F.glu({t}, {d})",
        "torch.block_diag({t}.flatten(0, -2), {t}.flatten(0, -2))",
    ],
}

# Results whose size depends on data.
DATA = {
    0: [
        "{t}[{t} > 0]",
        "{t}.nonzero() * 1.0",
        "{t}.masked_select({t} > 1)",
        "{t}[{t} == {t}]",
        "torch.where({t} > 0)[0] * 1.0",
        "{t}.unique()",
        "{t}[{t} < -99]",
        "torch.zeros({t}.clamp(0, 2).sum().int().item())",
    ],
    1: [
        "{t}[{t}.reshape({t}.shape[0], -1).sum(-1) > 0]",
        "torch.repeat_interleave({t}.reshape(-1), {t}.reshape(-1).clamp(0, 2).int())",
        "torch.combinations({t}.reshape(-1)[:{k} + 1])",
        "{t}[({t} > 0).nonzero()[:, 0]]",
        "{t}.reshape(-1)[({t}.reshape(-1) > 0).nonzero()[0]]",
    ],
}

# What writes to a tensor.
WRITES = {
    0: [
        "{w}.add_({a})",
        "{w}.mul_(2)",
        "{w} += {n}",
        "{w}.copy_({v})",
        "{w}.clamp_(-{n}, 3)",
        "{w}.fill_({n})",
        "{w} *= {v}",
    ],
    1: [
        "{w}[{c}:] += {a}",
        "{w}[:{c}] = {a}",
        "{w}[{n}:].mul_(3)",
        "{w}[:{n}] -= {a}",
        "{w}[::{k}] = {a}",
        "{w}[{i}] = {a}",
        "{w}[{n}:{m}] = {a}",
        "{w}[..., {i}] += {a}",
        "{w}.narrow({d}, 0, {n}).zero_()",
        "{w}.select({d}, {i}).add_({a})",
        "{w}.reshape(-1)[{i}] = {a}",
        "{w}.view(-1)[{c}:] *= 2",
        "{w}[{w} > 0] = {a}",
        "{w}.index_fill_({d}, torch.tensor([{i}]), {a})",
        "{w}[{c}:] = {w}[{c}:].flip(0)",
        "{w}.split({k}, {d})[0].add_({a})",
        "{w}.chunk(2, {d})[-1].mul_(2)",
        "{w}[1:] += {w}[:-1].clone()",
        "{w}[[0, -1]] = {a}",
        "{w}.index_put_((torch.arange({n}),), torch.tensor({a}.0))",
        "{w}[{n}] = {a}",
        "{w}[:] = {u}",
        "{w}[:1] = {w}[-1:] * 2",
        "{w}.squeeze({d}).add_({a})",
        "{w}.unsqueeze({d}).mul_(2)",
    ],
    2: [
        "{w}.mT[{c}:] += {a}",
        "{w}.diagonal().add_({a})",
        "{w}[:, {c}:] = {a}",
        "{w}.t()[{i}] = {a}",
        "{w}.flatten(0, 1)[:{n}] = {a}",
        "{w}.mT.reshape(-1)[0] = {a}",
        "{w}.mT.contiguous().mul_({a})",
    ],
}

SIZES = [
    "{n} + {k}",
    "{n} - {k}",
    "{n} * {k}",
    "{n} // {k}",
    "{n} % {k}",
    "{n} + {m}",
    "{n} - {m}",
    "{n} * {m}",
    "min({n}, {k})",
    "max({n}, {k})",
    "min({n}, {m})",
    "max({n}, {m})",
    "{n} // 2",
    "({n} + 1) // 2",
    "{n} % 2",
    "abs({n} - {m})",
    "({n} + {k}) // {k} * {k}",
    "{n} // ({m} + 1)",
    "{n} % ({m} + 1)",
    "max({n} - {k}, 0)",
    "-(-{n} // {k})",
    "{n} - {n} // {k}",
    "min({n} * {k}, {m})",
    "{n} ** 2",
    "{n} // {m}",
    "{n} % {m}",
    "int({n} / 2)",
    "{n} & 1",
    "sum([{n}, {m}])",
    "len(range({n}))",
    "math.ceil({n} / 2)",
    "round({n} * 1.5)",
    "int({n} == {m})",
    "torch.sym_max({n}, {m})",
    "int({n} > {k}) + {m}",
    "divmod({n}, {k})[1]",
    "{n} if {q} else {m}",
]

CONDITIONS = [
    "{n} == {m}",
    "{n} == {k}",
    "{n} != {k}",
    "{n} < {m}",
    "{n} >= {k}",
    "{n} > {m}",
    "{n} % {k} == 0",
    "{n} % 2 == 1",
    "{n} <= {k}",
    "{n}",
    "not {n}",
    "{n} == 1",
    "{n} == 0",
    "{n} > 1",
    "{n} <= 1",
    "{n} in (1, {k})",
    "0 < {n} <= {k}",
    "{t}.shape == {u}.shape",
    "{t}.numel() == 0",
    "{t}.numel() > {k}",
    "{t}.shape[-1:] == (1,)",
    "{n} + {m} > {k} + 2",
    "{n} * {m} == {k}",
    "min({n}, {m}) == {k}",
    "max({n}, {m}) > {k}",
    "{t}.dim() == {u}.dim()",
    "len({t}.shape) > 1",
    "{n} // 2 < {m}",
]
CONNECTED = ["{q} and {r}", "{q} or {r}", "not ({q})", "not ({q} and {r})", "any([{q}, {r}])"]

# Whole statements. {x} is the new tensor, {y} the new size.
STATEMENTS = {
    "branch": ["if {q}:", "    {x}, {y} = {t} + 1, 1", "else:", "    {x}, {y} = {t} * 2 - 3, 2"],
    "shapes": [
        "if {q}:",
        "    {x}, {y} = {t} + 1, 1",
        "else:",
        "    {x}, {y} = {t}[..., None] - 1, 2",
    ],
    "chain": [
        "if {q}:",
        "    {x}, {y} = {t} + 1, 1",
        "elif {r}:",
        "    {x}, {y} = {t} - 4, 2",
        "else:",
        "    {x}, {y} = {t}[None], 3",
    ],
    "conditional": ["{x} = {t} * 5 if {q} else {t} - 7", "{y} = 1 if {q} else 2"],
    "loop": ["{x}, {y} = {t} * 1, 0", "for i in range({n}):", "    {x}, {y} = {x} + i, {y} + 1"],
    "short": [
        "{x}, {y} = {t} * 1, 0",
        "for i in range(min({n}, {k})):",
        "    {x}, {y} = {x} * 2, {y} + i",
    ],
    "rows": [
        "{x}, {y} = 0.0 * {t}.sum(), 0",
        "for row in {t}.reshape({k}, -1):",
        "    {x}, {y} = {x} + row.sum(), {y} + 1",
    ],
    "halving": ["{x}, {y} = {t} * 1, {n}", "while {y} > 1:", "    {x}, {y} = {x} + 1, {y} // 2"],
    "assert": ["assert {q}", "{x}, {y} = {t} + 1, 7"],
    "check": ["torch._check({q})", "{x}, {y} = {t} - 1, 8"],
    "early": ["if {q}:", "    return {t} + 11, 4", "{x}, {y} = {t} + 2, 3"],
    "caught": [
        "try:",
        "    {x}, {y} = {t}.reshape({k}, -1) + 1, 1",
        "except RuntimeError:",
        "    {x}, {y} = {t} - 1, 2",
    ],
}

# A size that depends on data, and what the program says about it.
COUNTED = [
    "int(({t} > 0).sum())",
    "({t} > 1).sum().item()",
    "{t}.clamp(0, 3).sum().int().item()",
    "len({t}.nonzero())",
    "{t}[{t} > 0].shape[0]",
    "({t} > 0).sum().tolist()",
]
STATED = [
    "torch._check({y} >= 0)",
    "torch._check({y} <= {n})",
    "torch._check({y} < {n})",
    "torch._check({y} <= {k} + 3)",
    "torch._check_is_size({y})",
    "torch._check({y} == {n})",
    "torch._check({y} != {k})",
    "torch._check({y} + {n} > {k})",
    "torch._check({y} % 2 == 0)",
    "assert {y} >= 0",
]


@dataclass(frozen=True)
class Size:
    """One size of an input: `factor * root + offset`, or a constant when there is no root."""

    root: str | None
    factor: int
    offset: int
    spec: str
    """As it stands in dynamic_shapes."""

    def at(self, roots: dict[str, int]) -> int:
        return self.offset if self.root is None else self.factor * roots[self.root] + self.offset


@dataclass
class Program:
    """A function, its example sizes, and what its spec promises of other sizes."""

    seed: int
    definitions: dict[str, str]
    """Right-hand sides of the dims that the spec names."""
    inputs: dict[str, tuple[Size, ...]]
    example: dict[str, int]
    guards: str
    depends_on_data: bool = False
    lines: list[str] = field(default_factory=list)

    @property
    def body(self) -> str:
        text = "".join(f"    {line}\n" for line in self.lines)
        return f"def program({', '.join(self.inputs)}):\n{text}"

    @property
    def spec(self) -> str:
        entries = (
            f'"{name}": {{{", ".join(f"{d}: {s.spec}" for d, s in enumerate(sizes) if s.root)}}}'
            for name, sizes in self.inputs.items()
        )
        return f"{{{', '.join(entries)}}}"

    @property
    def text(self) -> str:
        shapes = self.shapes(self.example)
        dims = "".join(f"{name} = {value}\n" for name, value in self.definitions.items())
        given = "".join(f"tensor{tuple(s)}, " for s in shapes)
        return (
            f"# seed {self.seed}\n{dims}{self.body}\n"
            f"gp.export(program, ({given.strip()}), dynamic_shapes={self.spec}, "
            f'guards="{self.guards}")\n'
        )

    def function(self) -> Any:
        return compiled(self.body, f"<program {self.seed}>")["program"]

    def dynamic_shapes(self, definitions: dict[str, Any] | None = None) -> Any:
        """The spec, with the dims as defined by the program or as given."""
        if definitions is None:
            definitions = {n: eval(text, {"Dim": gp.Dim}) for n, text in self.definitions.items()}
        return eval(self.spec, {"Dim": gp.Dim, **definitions})

    def shapes(self, roots: dict[str, int]) -> Shapes:
        return tuple(tuple(s.at(roots) for s in sizes) for sizes in self.inputs.values())


def compiled(text: str, file: str) -> dict[str, Any]:
    """Run source that tracebacks and error messages can quote."""
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    space: dict[str, Any] = {"torch": torch}
    exec("import math\nimport torch.nn.functional as F", space)
    exec(compile(text, file, "exec"), space)
    return space


def tensors(shapes: Shapes) -> tuple[torch.Tensor, ...]:
    """Small whole numbers of both signs, so that sums are exact and masks select some."""
    return tuple(
        ((torch.arange(torch.Size(shape).numel()) * (7 + 2 * k)) % 11 - 5 + k)
        .reshape(shape)
        .float()
        for k, shape in enumerate(shapes)
    )


# Specs

_RANGES = [
    "",
    "",
    "",
    ", min=1",
    ", min=2",
    ", max=6",
    ", min=1, max=2",
    ", min=2, max=6",
    ", min=0, max=4",
]


def _declare(rng: random.Random, program: Program) -> None:
    """Inputs of one to three dims whose sizes are dims, derived dims, automatic or constant."""
    automatic = rng.random() < 0.45
    roots: list[str] = []

    def root(spec: str) -> str:
        name = f"s{len(program.example)}" if spec.startswith("Dim.") else "abcd"[len(roots)]
        low, high = 0, 6
        if not spec.startswith("Dim."):
            limits = rng.choice(_RANGES)
            program.definitions[name] = f'Dim("{name}"{limits})'
            dim = eval(program.definitions[name], {"Dim": gp.Dim})
            low, high = dim.min, 6 if dim.max is None else dim.max
            roots.append(name)
        usual = [n for n in (2, 3, 3, 4, 4, 5, 6) if low <= n <= high]
        rare = rng.random() < 0.12 or not usual
        program.example[name] = (
            rng.randint(low, min(high, 1)) if rare and low <= 1 else rng.choice(usual or [low])
        )
        return name

    def size() -> Size:
        kind = rng.random()
        if kind < 0.25:
            return Size(None, 0, rng.choice([1, 2, 3, 4]), "None")
        if automatic and kind < 0.9:
            hint = "Dim.DYNAMIC" if kind < 0.35 else "Dim.AUTO"
            return Size(root(hint), 1, 0, hint)
        name = (
            rng.choice(roots) if (roots and rng.random() < 0.55) or len(roots) == 3 else root("Dim")
        )
        factor, offset = rng.choice([(1, 0)] * 6 + [(2, 0), (1, 1), (2, 1), (3, 0), (1, 2)])
        text = name if factor == 1 else f"{factor}*{name}"
        return Size(name, factor, offset, f"{text} + {offset}" if offset else text)

    for name in "xyz"[: rng.choice([1, 1, 2, 2, 3])]:
        program.inputs[name] = tuple(size() for _ in range(rng.choice([1, 2, 2, 3])))


# Programs

_NUMBERS = {
    "a": range(1, 10),
    "b": range(-4, 6),
    "c": range(-3, 5),
    "i": (-2, -1, -1, 0, 0, 1, 2),
    "j": (0, 1, 2),
    "k": (1, 2, 2, 3, 3, 4),
    "p": (-1, 0, 1, 2),
}


class Draft:
    """A program in the making, with its variables in eager at the example and at other sizes."""

    def __init__(self, rng: random.Random, program: Program) -> None:
        self.rng = rng
        self.program = program
        self.tensors = list(program.inputs)
        self.sizes: list[str] = []
        self.writable = set(program.inputs)
        self.given: list[Shapes] = [program.shapes(program.example)]
        for _ in range(5):
            roots = {name: rng.randint(0, 6) for name in program.example}
            if any(n < 0 for shape in program.shapes(roots) for n in shape):
                continue
            self.given.append(program.shapes(roots))
        self.spaces: list[dict[str, Any] | None] = []
        self.names = (f"t{k}" for k in itertools.count())
        self.numbers = (f"n{k}" for k in itertools.count())
        self.restart()

    def restart(self) -> None:
        self.spaces = []
        for shapes in self.given:
            text = self.program.body + "    return locals()\n"
            space = compiled(text, "<draft>")
            try:
                made = space["program"](*tensors(shapes))
            except (*FAILURES, AssertionError):
                made = None
            # A program that returned early runs, and has no variables to show.
            self.spaces.append({} if isinstance(made, tuple) else made)

    @property
    def example(self) -> dict[str, Any]:
        assert self.spaces[0] is not None
        return self.spaces[0]

    def attempt(self, lines: list[str]) -> bool:
        """Keep the lines if eager runs them at the example and, mostly, at the other sizes."""
        alive = sum(s is not None for s in self.spaces)
        before = self.spaces
        self.program.lines += lines
        self.restart()
        left = sum(s is not None for s in self.spaces)
        small = all(_small(v) for s in self.spaces if s is not None for v in s.values())
        if self.spaces[0] and small and (left == alive or self.rng.random() < 0.15):
            return True
        del self.program.lines[-len(lines) :]
        self.spaces = before
        return False

    # Filling of templates

    def fill(self, template: str, own: str | None = None, depth: int = 0) -> str:
        """The template with its braces replaced; {t} and {w} are `own`."""
        text, rest = "", template
        while "{" in rest:
            before, _, rest = rest.partition("{")
            kind, _, rest = rest.partition("}")
            text += before + self._part(kind, own, depth)
        return text + rest

    def _part(self, kind: str, own: str | None, depth: int) -> str:
        rng = self.rng
        match kind:
            case "t" | "w":
                return own or rng.choice(self.tensors)
            case "u":
                return rng.choice(self.tensors)
            case "v":
                shape = self.example[own].shape if own else None
                like = [t for t in self.tensors if self.example[t].shape == shape]
                return rng.choice(like or self.tensors)
            case "d" | "e":
                rank = self.example[own].dim() if own else 1
                return str(rng.randint(-rank, rank - 1)) if rank else "0"
            case "n" | "m":
                return self.size(own, depth)
            case "q" | "r":
                return self.condition(own, depth)
        return str(rng.choice(_NUMBERS[kind]))

    def size(self, own: str | None, depth: int = 0) -> str:
        rng = self.rng
        kind = rng.random()
        if depth < 2 and kind < 0.4:
            return f"({self.fill(rng.choice(SIZES), own, depth + 1)})"
        if self.sizes and kind < 0.6:
            return rng.choice(self.sizes)
        if kind < 0.63:
            return str(rng.randint(0, 4))
        ranked = [t for t in self.tensors if self.example[t].dim()]
        if not ranked:
            return "2"
        name = own if own in ranked and rng.random() < 0.5 else rng.choice(ranked)
        if kind < 0.72:
            return rng.choice([f"len({name})", f"{name}.numel()"])
        rank = self.example[name].dim()
        return f"{name}.shape[{rng.randint(-rank, rank - 1)}]"

    def condition(self, own: str | None, depth: int = 0) -> str:
        table = CONNECTED if depth < 1 and self.rng.random() < 0.25 else CONDITIONS
        return self.fill(self.rng.choice(table), own, depth + 1)

    def template(self, table: dict[int, list[str]], rank: int) -> str:
        return self.rng.choice(
            [text for least, rows in table.items() if least <= rank for text in rows]
        )

    # Lines

    def tensor(self, table: dict[int, list[str]]) -> None:
        own = self.rng.choice(self.tensors[-4:])
        name = next(self.names)
        text = self.fill(self.template(table, self.example[own].dim()), own)
        if self.attempt([f"{name} = {text}"]):
            self.tensors.append(name)
            if table is FRESH or (table is VIEWS and own in self.writable):
                self.writable.add(name)

    def number(self) -> None:
        name = next(self.numbers)
        if self.attempt([f"{name} = {self.fill(self.rng.choice(SIZES))}"]):
            self.sizes.append(name)

    def write(self) -> None:
        own = self.rng.choice([t for t in self.tensors if t in self.writable])
        self.attempt([self.fill(self.template(WRITES, self.example[own].dim()), own)])

    def statement(self) -> None:
        own = self.rng.choice(self.tensors[-4:])
        tensor, size = next(self.names), next(self.numbers)
        rows = STATEMENTS[self.rng.choice(list(STATEMENTS))]
        rows = [row.replace("{x}", tensor).replace("{y}", size) for row in rows]
        if self.attempt([self.fill(row, own) for row in rows]):
            self.tensors.append(tensor)
            self.sizes.append(size)
            self.writable.add(tensor)

    def counted(self) -> None:
        size = next(self.numbers)
        rows = [f"{size} = {self.fill(self.rng.choice(COUNTED))}"]
        rows += [
            self.fill(self.rng.choice(STATED).replace("{y}", size))
            for _ in range(self.rng.randint(1, 3))
        ]
        if self.attempt(rows):
            self.sizes.append(size)


def _small(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.numel() <= 2000 and value.dtype is torch.float32 and value.dim() <= 5
    return not isinstance(value, int) or abs(value) < 10**6


# What eager may raise at a size that a program does not bear.
FAILURES = (
    RuntimeError,
    IndexError,
    ValueError,
    TypeError,
    ZeroDivisionError,
    UserWarning,
    OverflowError,
)


def generate(seed: int, longest: int = 6) -> Program:
    """The program of that number, always the same."""
    rng = random.Random(seed)
    program = Program(seed, {}, {}, {}, rng.choice(["error", "runtime_assert", "runtime_assert"]))
    _declare(rng, program)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        draft = Draft(rng, program)
        kinds = [*[draft.statement] * 4, draft.number, draft.number, draft.write, draft.write]
        kinds += [lambda: draft.tensor(VIEWS)] * 5 + [lambda: draft.tensor(FRESH)] * 5
        kinds += [lambda: draft.tensor(REPEATS)]
        program.depends_on_data = rng.random() < 0.2
        if program.depends_on_data:
            kinds += [lambda: draft.tensor(DATA), draft.counted] * 2
        for _ in range(rng.randint(2, longest)):
            for _ in range(4):
                count = len(program.lines)
                rng.choice(kinds)()
                if len(program.lines) > count:
                    break
    # Every tensor is returned: an operator whose result nobody uses is no part of a program, and
    # whether it would have failed is not asked.
    names = [*draft.tensors, *(n for n in draft.sizes if rng.random() < 0.8)]
    program.lines.append(f"return {', '.join(names)},")
    return program


def grid(program: Program, most: int) -> Iterator[Shapes]:
    """Sizes to try: all values of all roots where they are few, then some that break the spec."""
    rng = random.Random(program.seed)
    names = list(program.example)
    points = list(itertools.product(range(7), repeat=len(names)))
    if len(points) > most:
        points = rng.sample(points, most)
    seen = set()
    for point in points:
        shapes = program.shapes(dict(zip(names, point, strict=True)))
        if shapes not in seen:
            seen.add(shapes)
            yield shapes
    for _ in range(2):
        shapes = [list(s) for s in program.shapes(program.example)]
        sizes = rng.choice(shapes)
        sizes[rng.randrange(len(sizes))] = rng.randint(0, 6)
        yield tuple(map(tuple, shapes))
