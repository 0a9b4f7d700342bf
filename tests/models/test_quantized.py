"""Quantised models in ONNX Runtime, as PT2E and torchao leave them: as eager, at other sizes."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphport as gp
from tests.quantized import PT2E

F = nn.functional
B, T = gp.Dim("batch"), gp.Dim("time")
INT8 = (-128, 127, torch.int8)


def quantised(x: Tensor, scale: float, zero: int) -> Tensor:
    kind = scale, zero, *INT8
    return PT2E.dequantize_per_tensor(PT2E.quantize_per_tensor(x, *kind), *kind)


class Converted(nn.Module):
    """What convert_pt2e makes of a convolution and a linear layer: signed bytes, scales per row."""

    def __init__(self) -> None:
        super().__init__()
        for name, shape in (("conv", (8, 3, 3, 3)), ("linear", (10, 8))):
            q = torch.randint(-127, 128, shape, dtype=torch.int8)
            self.register_buffer(name, q)
            self.register_buffer(f"{name}_scale", torch.rand(shape[0]) * 0.005 + 0.001)
            self.register_buffer(f"{name}_zero", torch.zeros(shape[0], dtype=torch.int64))

    def weight(self, name: str) -> Tensor:
        parts = (getattr(self, n) for n in (name, f"{name}_scale", f"{name}_zero"))
        return PT2E.dequantize_per_channel(*parts, 0, -127, 127, torch.int8)

    def forward(self, x: Tensor) -> Tensor:
        x = quantised(x, 0.03, 4)
        x = quantised(F.conv2d(x, self.weight("conv"), padding=1).relu(), 0.02, -128)
        x = quantised(F.adaptive_avg_pool2d(x, 1), 0.005, -128).flatten(1)
        return quantised(F.linear(x, self.weight("linear")), 0.01, 3)


def test_converted() -> None:
    model = Converted()
    program = gp.onnx.export(
        model, (torch.randn(2, 3, 16, 16),), dynamic_shapes=({0: B},), verify=True
    )
    ops = [n.op_type for n in program.model_proto.graph.node]
    assert ops.count("DequantizeLinear") == 6 and ops.count("QuantizeLinear") == 4
    kinds = {i.name: i.data_type for i in program.model_proto.graph.initializer}
    assert kinds["conv"] == kinds["linear"] == 3  # INT8


# torchao


@pytest.fixture
def ao() -> Any:
    pytest.importorskip("torchao", reason="an optional library")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module("torchao.quantization")


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        parts = self.qkv(self.first(x)).view(b, t, 3, self.heads, d // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(128, 64)
        self.blocks = nn.Sequential(Block(64, 4), Block(64, 4))
        self.head = nn.Linear(64, 128, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.blocks(self.embedding(ids)))


CONFIGS = {  # and the bytes that a file has at most, of 481 000 in float32
    "Int8WeightOnlyConfig()": 190_000,
    "Int8WeightOnlyConfig(granularity=PerGroup(32))": 200_000,
    "Int8DynamicActivationInt8WeightConfig()": 270_000,
    "IntxWeightOnlyConfig(weight_dtype=torch.int8)": 190_000,
    "IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32))": 145_000,
    "Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4)": 230_000,
    "Float8WeightOnlyConfig()": 190_000,
}


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS)
def test_torchao(config: str, ao: Any) -> None:
    model = Transformer().eval()
    ao.quantize_(model, eval(config, {**vars(ao), "torch": torch}))
    ids = torch.randint(0, 128, (2, 9))
    program = gp.onnx.export(model, (ids,), dynamic_shapes=({0: B, 1: T},), verify=True)
    assert program.model_proto.ByteSize() < CONFIGS[config]


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("kind", ["x86", "xnnpack"])
def test_pt2e(kind: str, dynamic: bool, ao: Any) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(2), nn.Linear(36, 10)
    )
    x = torch.randn(2, 3, 8, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantize = importlib.import_module("torchao.quantization.pt2e.quantize_pt2e")
        if kind == "x86":
            name = "torchao.quantization.pt2e.quantizer.x86_inductor_quantizer"
            module = importlib.import_module(name)
            config = module.get_default_x86_inductor_quantization_config(is_dynamic=dynamic)
            quantizer = module.X86InductorQuantizer().set_global(config)
        else:
            module = importlib.import_module("torchao.testing.pt2e._xnnpack_quantizer")
            config = module.get_symmetric_quantization_config(
                is_per_channel=True, is_dynamic=dynamic
            )
            quantizer = module.XNNPACKQuantizer().set_global(config)
        batch = torch.export.Dim("batch", min=0)
        exported = torch.export.export(model.eval(), (x,), dynamic_shapes=({0: batch},))
        prepared = quantize.prepare_pt2e(exported.module(), quantizer)
        for _ in range(3):
            prepared(torch.randn(2, 3, 8, 8))
        converted = quantize.convert_pt2e(prepared)
    program = gp.onnx.export(converted, (x,), dynamic_shapes=({0: B},), verify=True)
    kinds = [i.data_type for i in program.model_proto.graph.initializer]
    assert 3 in kinds  # INT8
