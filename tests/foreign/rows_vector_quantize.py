"""vector-quantize-pytorch: codebooks of every kind."""

from __future__ import annotations

from typing import Any

import vector_quantize_pytorch
from torch import nn

from tests.foreign.rows import Table, noise

TABLE = Table()
SIZES = ((2, 12), (3, 17), (1, 5))


def of(name: str, **config: Any) -> Any:
    def build() -> nn.Module:

        return getattr(vector_quantize_pytorch, name)(**config).eval()

    return build


for title, name, config in (
    ("VectorQuantize", "VectorQuantize", {"dim": 16, "codebook_size": 8}),
    (
        "VectorQuantize_cosine",
        "VectorQuantize",
        {"dim": 16, "codebook_size": 8, "use_cosine_sim": True},
    ),
    (
        "VectorQuantize_heads",
        "VectorQuantize",
        {"dim": 16, "codebook_size": 8, "heads": 2, "codebook_dim": 4},
    ),
    (
        "VectorQuantize_images",
        "VectorQuantize",
        {
            "dim": 16,
            "codebook_size": 8,
            "separate_codebook_per_head": True,
            "heads": 2,
            "codebook_dim": 8,
        },
    ),
    ("ResidualVQ", "ResidualVQ", {"dim": 16, "num_quantizers": 3, "codebook_size": 8}),
    (
        "GroupedResidualVQ",
        "GroupedResidualVQ",
        {"dim": 16, "num_quantizers": 2, "groups": 2, "codebook_size": 8},
    ),
    ("FSQ", "FSQ", {"levels": [5, 4, 3], "dim": 16}),
    ("ResidualFSQ", "ResidualFSQ", {"dim": 16, "levels": [5, 4, 3], "num_quantizers": 2}),
    ("LFQ", "LFQ", {"codebook_size": 16, "dim": 16}),
    ("ResidualLFQ", "ResidualLFQ", {"dim": 16, "codebook_size": 16, "num_quantizers": 2}),
    ("SimVQ", "SimVQ", {"dim": 16, "codebook_size": 8}),
    (
        "RandomProjectionQuantizer",
        "RandomProjectionQuantizer",
        {"dim": 16, "num_codebooks": 2, "codebook_dim": 4, "codebook_size": 8},
    ),
):
    refused = "GP200" if name == "SimVQ" else ""  # computed by einx
    TABLE.add(title, of(name, **config), lambda b, n: (noise(b, n, 16),), SIZES, refused)
