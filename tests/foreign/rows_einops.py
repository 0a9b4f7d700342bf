"""einops: rearrangements in a forward, its layers, einsum, packing."""

from __future__ import annotations

from typing import Any

from einops import einsum, pack, parse_shape, rearrange, reduce, repeat, unpack
from einops.layers.torch import EinMix, Rearrange, Reduce
from torch import Tensor, nn

from tests.foreign.rows import Call, Table, noise

TABLE = Table()


def add(name: str, function: Any, shape: Any, sizes: Any, *modules: Any) -> None:
    TABLE.add(
        name,
        lambda: Call(function, *(make() for make in modules)).eval(),
        lambda *n: tuple(noise(*s) for s in shape(*n)),
        sizes,
    )


def heads(x: Tensor) -> Tensor:

    q, k, v = rearrange(x, "b n (three h d) -> three b h n d", three=3, h=4)
    return rearrange((q @ k.transpose(-1, -2)).softmax(-1) @ v, "b h n d -> b n (h d)")


def patches(x: Tensor) -> Tensor:

    return rearrange(x, "b c (h p1) (w p2) -> b (h w) (p1 p2 c)", p1=4, p2=4)


def pooled(x: Tensor) -> Tensor:

    return reduce(x, "b c (h 2) (w 2) -> b c h w", "max") + reduce(
        x, "b c h w -> b c () ()", "mean"
    )


def repeated(x: Tensor, y: Tensor) -> Tensor:

    return x + repeat(y, "n d -> b n d", b=x.shape[0])


def multiplied(x: Tensor, y: Tensor) -> Tensor:

    return einsum(x, y, "batch time feature, feature out -> batch out time")


def packed(x: Tensor, y: Tensor) -> Any:

    both, shapes = pack([x, y], "b * d")
    return unpack(both.relu(), shapes, "b * d")


def parsed(x: Tensor) -> Any:

    shape = parse_shape(x, "b c h w")
    flat = rearrange(x, "b c h w -> b (h w) c")
    return rearrange(flat.softmax(1), "b (h w) c -> b c h w", **{k: shape[k] for k in "hw"})


def mixed(mix: Any, x: Tensor) -> Tensor:
    return mix(x)


def mix() -> nn.Module:

    return EinMix("b t (h c) -> b h t d", "h c d", "h d", h=4, c=8, d=6)


def layers() -> nn.Module:

    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        Rearrange("b c (h h2) (w w2) -> b (c h2 w2) h w", h2=2, w2=2),
        nn.Conv2d(32, 8, 1),
        Reduce("b c h w -> b c", "mean"),
        nn.Linear(8, 5),
    )


def windows(x: Tensor) -> Tensor:

    b, h, w, _ = x.shape
    split = rearrange(x, "b (h s) (w t) c -> (b h w) (s t) c", s=4, t=4)
    split = split - split.mean(1, keepdim=True)
    return rearrange(split, "(b h w) (s t) c -> b (h s) (w t) c", b=b, h=h // 4, w=w // 4, s=4)


def ellipses(x: Tensor) -> Tensor:

    return rearrange(x, "... (h d) -> ... h d", h=4).sum(-1)


SIZES = ((2, 8), (3, 12), (1, 4))
IMAGES = ((2, 8, 12), (3, 16, 4), (1, 4, 4))
add("rearrange_heads", heads, lambda b, n: [(b, n, 96)], SIZES)
add("rearrange_patches", patches, lambda b, h, w: [(b, 3, h, w)], IMAGES)
add("rearrange_windows", windows, lambda b, h, w: [(b, h, w, 6)], IMAGES)
add("rearrange_ellipsis", ellipses, lambda b, n: [(b, n, 32)], SIZES)
add("reduce", pooled, lambda b, h, w: [(b, 3, h, w)], IMAGES)
add("repeat", repeated, lambda b, n: [(b, n, 6), (n, 6)], SIZES)
add("einsum", multiplied, lambda b, n: [(b, n, 6), (6, 7)], SIZES)
add("pack", packed, lambda b, n: [(b, n, 6), (b, n + 3, 6)], SIZES)
add("parse_shape", parsed, lambda b, h, w: [(b, 3, h, w)], IMAGES)
add("EinMix", mixed, lambda b, n: [(b, n, 32)], SIZES, mix)
add("layers", mixed, lambda b, h, w: [(b, 3, h, w)], IMAGES, layers)
