"""From a PyTorch transformer to a verified ONNX file: `make demo`.

The same from the command line:

    graphport export examples/transformer.py:build -o transformer.onnx --verify
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

import graphport as gp


class Block(nn.Module):
    """Causal attention and a feed-forward network, each around a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def attend(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        out = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.mix(out.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm(x))
        return x + self.mlp(x)


class Transformer(nn.Module):
    """Token ids to the scores of each next token."""

    def __init__(
        self,
        vocab: int = 1000,
        width: int = 256,
        heads: int = 8,
        layers: int = 4,
        longest: int = 512,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.positions = nn.Embedding(longest, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.tokens(ids) + self.positions(places)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def build() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any], dict[str, Any]]:
    """The model, example inputs, and the sizes that may vary: what `graphport export` takes."""
    torch.manual_seed(0)
    sizes = {"ids": {0: gp.Dim("batch", min=1, max=64), 1: gp.Dim("seq", min=1, max=512)}}
    return Transformer().eval(), (torch.randint(0, 1000, (2, 16)),), {}, sizes


def milliseconds(run: Callable[[Tensor], Any], ids: Tensor) -> float:
    times = []
    for _ in range(9):
        began = perf_counter()
        run(ids)
        times.append(perf_counter() - began)
    return 1e3 * median(times)


def main() -> None:
    model, args, _, sizes = build()
    weights = sum(p.numel() for p in model.parameters())
    print(f"A transformer of {len(model.blocks)} blocks, {weights / 1e6:.1f} million parameters")

    began = perf_counter()
    program = gp.onnx.export(model, args, dynamic_shapes=sizes)
    exported = perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "transformer.onnx"
        program.save(path)
        size = path.stat().st_size
    saved = perf_counter()
    print(f"\nto ONNX {exported - began:.2f} s, to disk {saved - exported:.2f} s")
    print(f"{program.graph.count()} nodes at opset {program.opset}, {size / 1e6:.1f} MB")
    for kind, values in (("in", program.graph.inputs), ("out", program.graph.outputs)):
        print(f"  {kind:4}{', '.join(map(str, values))}")

    report = program.verify()
    print(f"\nagainst PyTorch, on ONNX Runtime, in {perf_counter() - saved:.2f} s")
    print(report)
    if not report.ok:
        raise SystemExit("the ONNX model differs from PyTorch")

    print("\nmilliseconds    PyTorch  ONNX Runtime")
    for batch, seq in ((1, 8), (1, 128), (4, 64)):
        ids = torch.randint(0, 1000, (batch, seq))
        with torch.no_grad():
            torch.testing.assert_close(program(ids), model(ids), rtol=1e-4, atol=1e-4)
            eager, onnx = milliseconds(model, ids), milliseconds(program, ids)
        print(f"  [{batch}, {seq:3}]      {eager:7.1f}  {onnx:12.1f}")

    print("\nat a size that it was not made for")
    try:
        program(torch.zeros(1, 513, dtype=torch.int64))
    except RuntimeError as error:
        print(f"  {error}")
    else:
        raise SystemExit("a wrong size was accepted")


if __name__ == "__main__":
    main()
