"""Numbers of a float64 program keep their 64 bits: an ONNX attribute has 32.

ONNX Runtime fuses what it recognises, and puts the numbers of it into attributes: a file is written
so that it does not recognise what it would round.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F

import graphport as gp

W = torch.linspace(0.5, 2.0, 4, dtype=torch.float64)


def _mean_square(x: Any) -> Any:
    return x.pow(2).mean(-1, keepdim=True)


def _centred(x: Any) -> Any:
    return x - x.mean(-1, keepdim=True)


PROGRAMS = {
    "scale_before": lambda x: (x / 6) @ x,
    "scale_right": lambda x: x @ (x.t() * 0.1),
    "scale_after": lambda x: (x @ x) * 0.1,
    "scale_transposed": lambda x: (x @ x).t() * 0.1,
    "scale_tensor": lambda x: (x @ x) * torch.tensor([0.1], dtype=x.dtype),
    "scale_of_batch": lambda x: (x[None] * 0.1) @ (x[None] / 3),
    "scale_of_vector": lambda x: (x[0] / 6) @ x[1],
    "linear": lambda x: F.linear(x[None] * 0.1, x, x[0]),
    "addmm": lambda x: torch.addmm(x, x, x, beta=0.3, alpha=0.7),
    "baddbmm": lambda x: torch.baddbmm(x[None], x[None], x[None], beta=0.3, alpha=0.7),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], scale=0.3),
    "layer_norm": lambda x: F.layer_norm(x * 1e-3, (4,), W, eps=1e-5),
    "rms_norm": lambda x: F.rms_norm(x * 1e-3, (4,), W, eps=1e-5),
    "batch_norm": lambda x: F.batch_norm(x, W, W * 1e-5, eps=1e-5),
    "group_norm": lambda x: F.group_norm(x[None] * 1e-3, 2, eps=1e-5),
    "rms_by_hand": lambda x: x / torch.sqrt(_mean_square(x) + 0.01) * W,
    "rms_by_rsqrt": lambda x: x * torch.rsqrt(_mean_square(x) + 0.01) * W,
    "layer_norm_by_hand": lambda x: (
        _centred(x) / torch.sqrt(_mean_square(_centred(x)) + 0.01) * W + W
    ),
    "square_of_tensor": lambda x: (
        x / torch.sqrt((x ** torch.tensor(2.0, dtype=x.dtype)).mean(-1, keepdim=True) + 0.01) * W
    ),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.1),
    "elu": lambda x: F.elu(x, 0.3),
    "celu": lambda x: F.celu(x, 0.3),
    "selu": F.selu,
    "hardsigmoid": F.hardsigmoid,
    "local_response_norm": lambda x: F.local_response_norm(x[None], 2, 0.1, 0.7, 1.1),
}


@pytest.mark.parametrize("opset", [18, 23])
@pytest.mark.parametrize("target", ["onnx", "ort"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_precise_as_eager(name: str, target: str, opset: int) -> None:
    class Program(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(0.1, dtype=torch.float64))

        def forward(self, x: torch.Tensor) -> Any:
            return PROGRAMS[name](x), (x @ x) * self.scale

    x = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    model = gp.onnx.export(Program(), (x,), target=target, opset=opset)
    session = onnxruntime.InferenceSession(model.model_proto.SerializeToString())
    results = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    for made, wanted in zip(results, Program()(x), strict=True):
        np.testing.assert_allclose(made, wanted.detach().numpy(), rtol=1e-11, atol=1e-13)
