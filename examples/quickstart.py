"""Capture a small text classifier once, run it at any batch size: python examples/quickstart.py"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import graphport as gp


class Classifier(nn.Module):
    """Token ids to class scores: embedding, one transformer block, mean over time, linear."""

    def __init__(self, vocab: int = 100, width: int = 32, heads: int = 4, classes: int = 3) -> None:
        super().__init__()
        self.heads = heads
        self.embedding = nn.Embedding(vocab, width)
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.head = nn.Linear(width, classes)

    def attend(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        out = nn.functional.scaled_dot_product_attention(query, key, value)
        return self.mix(out.transpose(1, 2).reshape(batch, length, width))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        x = x + self.attend(self.norm(x))
        x = x + self.mlp(x)
        return self.head(x.mean(1)).softmax(-1)


def main() -> None:
    torch.manual_seed(0)
    model = Classifier().eval()
    example = torch.randint(0, 100, (2, 16))

    # The batch may be anything from 1 to 64; the 16 tokens of each row are part of the program.
    batch = gp.Dim("batch", min=1, max=64)
    program = gp.export(model, (example,), dynamic_shapes={"tokens": {0: batch}})

    print("--- the program")
    print(program)
    print("--- its dynamic sizes")
    for symbol, sizes in program.range_constraints.items():
        print(f"{symbol}: {sizes.lower} to {sizes.upper}")

    print("--- at another batch size")
    run = program.module()
    tokens = torch.randint(0, 100, (7, 16))
    with torch.no_grad():
        expected, actual = model(tokens), run(tokens)
    torch.testing.assert_close(actual, expected)
    print(f"{tuple(tokens.shape)} -> {tuple(actual.shape)}, equal to eager")
    print(f"largest difference {(actual - expected).abs().max().item():.1e}")

    print("--- at a size it was not made for")
    try:
        run(torch.randint(0, 100, (2, 17)))
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
    else:
        raise SystemExit("a wrong shape was accepted")


if __name__ == "__main__":
    main()
