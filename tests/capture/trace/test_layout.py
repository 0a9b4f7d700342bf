"""Inputs in another memory layout than the example: a program that ran in eager runs captured."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import graphport as gp
from tests.helpers import check

Transform = Callable[[torch.Tensor], torch.Tensor]

LAYOUTS: dict[str, Transform] = {
    "contiguous": lambda x: x.contiguous(),
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "transposed": lambda x: x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
    "sliced": lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]],
    "expanded": lambda x: x[:1].expand_as(x),
}

PROGRAMS: dict[str, Transform] = {
    "flatten": lambda x: torch.flatten(x, 1),
    "reshape": lambda x: x.reshape(x.shape[0], -1),
    "contiguous view": lambda x: x.contiguous().view(x.shape[0], -1),
    "transposed view": lambda x: x.transpose(1, 2).contiguous().view(-1),
    "ravel": lambda x: x.ravel(),
    "unflatten": lambda x: x.unflatten(1, (3, 1)),
    "elementwise": lambda x: (x + 1).relu() * x.mean((2, 3), keepdim=True),
    "convolution": lambda x: torch.flatten(nn.functional.conv2d(x, torch.ones(2, 3, 2, 2)), 1),
    "kron": lambda x: torch.kron(x[0, 0], x[0, 1]),
    "softmax": lambda x: x.softmax(1).permute(0, 2, 3, 1).reshape(-1, 3),
    "cat": lambda x: torch.cat([x, x.clone()], 1).flatten(),
    "stack": lambda x: torch.stack(x.unbind(0), -1).flatten(),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_other_layouts_than_the_example(name: str, layout: str) -> None:
    x = torch.randn(2, 3, 4, 5)
    ep = gp.export(PROGRAMS[name], (x,))
    other = LAYOUTS[layout](x)
    torch.testing.assert_close(ep.module()(other), PROGRAMS[name](other))


IN_ONE_LAYOUT: dict[str, Transform] = {
    "index_add": lambda x: x.index_add(-1, torch.tensor([0, 1, 2, 3, 4]), x),
    "interpolate": lambda x: nn.functional.interpolate(
        x[:, :, :1, 0], scale_factor=2, mode="linear"
    ),
    "passed on": lambda x: nn.functional.silu(x.index_add(0, torch.tensor([0, 1]), x)) + 1,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", IN_ONE_LAYOUT)
def test_views_of_what_only_the_whole_operator_lays_out(name: str, layout: str) -> None:
    """Its parts hand the layout of their operands on, of which there may be no view."""
    fn = lambda x: IN_ONE_LAYOUT[name](x).view(-1)
    x = torch.randn(2, 3, 4, 5)
    core = gp.export(fn, (x,)).run_decompositions()
    other = LAYOUTS[layout](x)
    torch.testing.assert_close(core.module()(other), fn(other))
    both = lambda x: (y := IN_ONE_LAYOUT[name](x), y.view(-1))
    one, view = gp.export(both, (x,)).run_decompositions().module()(x)
    assert one.data_ptr() == view.data_ptr()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_examples_in_any_layout(name: str, layout: str) -> None:
    """Metadata (strides included) is right for the example's layout, with dynamic sizes too."""
    x = LAYOUTS[layout](torch.randn(2, 3, 4, 5))
    check(PROGRAMS[name], (x,))
    if layout in ("contiguous", "channels last") and name != "stack":  # unbind needs a fixed size
        b, w = gp.Dim("b", min=2), gp.Dim("w", min=2)
        other = LAYOUTS[layout](torch.randn(3, 3, 4, 7))
        check(PROGRAMS[name], (x,), dynamic_shapes=({0: b, 3: w},), others=[(other,)])


def test_channels_last_is_kept_through_a_network() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 1),
        nn.Upsample(scale_factor=2),
        nn.AdaptiveAvgPool2d((2, 2)),
    ).eval()
    x = torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    ep = check(model, (x,), dynamic_shapes=({0: gp.Dim("b", min=1)},))
    output = next(n for n in reversed(ep.graph.nodes) if n.op == "output").args[0][0]
    assert output.meta["val"].is_contiguous(memory_format=torch.channels_last)


FORMATS = {
    "contiguous": lambda x: x.contiguous(memory_format=torch.channels_last),
    "by position": lambda x: torch.Tensor.contiguous(x, memory_format=torch.contiguous_format),
    "twice": lambda x: x.contiguous(memory_format=torch.channels_last).contiguous(
        memory_format=torch.channels_last
    ),
    "to": lambda x: x.to(memory_format=torch.channels_last),
    "to, kept": lambda x: x.to(torch.float32, memory_format=torch.preserve_format),
    "to, copied": lambda x: x.to(torch.float32, copy=True),
    "to another": lambda x: x.to(torch.ones(2, dtype=torch.float64)),
    "to another of its dtype": lambda x: x.to(torch.ones(2)),
}


@pytest.mark.parametrize("layout", [n for n in LAYOUTS if n != "expanded"])  # not to be written
@pytest.mark.parametrize("name", FORMATS)
def test_a_copy_where_the_layout_differs_and_the_tensor_itself_where_not(
    name: str, layout: str
) -> None:
    """A write tells which of them it was."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return FORMATS[name](x).add_(1), x

    check(f, (LAYOUTS[layout](torch.randn(2, 3, 4, 5)),))


def test_a_copy_that_is_none_at_some_sizes_is_refused_there() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.t().contiguous()
        y.add_(1)
        return x * 2

    a = gp.Dim("a")
    module = gp.export(f, (torch.ones(3, 4),), dynamic_shapes=({0: a},)).module()
    torch.testing.assert_close(module(torch.ones(5, 4)), torch.full((5, 4), 2.0))
    one = torch.ones(1, 4)
    want = f(one.clone())
    try:
        have = module(one.clone())
    except RuntimeError:
        return
    torch.testing.assert_close(have, want)
