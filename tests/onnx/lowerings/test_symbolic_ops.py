"""`torch.onnx.ops` in a model: operators of ONNX that it names itself."""

from __future__ import annotations

import pytest
import torch
from torch.onnx import ops

import graphport as gp
from graphport.errors import UnsupportedError
from tests.onnx.helpers import check_onnx

x = torch.randn(2, 4)
SPEC = ({0: gp.Dim("n")},)


def test_an_operator_of_the_standard() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = ops.symbolic(
            "LeakyRelu", (x,), {"alpha": 0.5}, dtype=x.dtype, shape=x.shape, version=20
        )
        return y + 1

    program = gp.onnx.export(fn, (x,), dynamic_shapes=SPEC)
    torch.testing.assert_close(program(torch.randn(3, 4) * 0 - 1), torch.full((3, 4), 0.5))
    with pytest.raises(UnsupportedError, match="Relu of opset 14 is another operator at opset 13"):
        gp.onnx.export(
            lambda x: ops.symbolic("Relu", (x,), dtype=x.dtype, shape=x.shape, version=14),
            (x,),
            opset=13,
        )


def test_an_operator_of_another_domain() -> None:
    attributes = {"axes": [0, 1], "scale": 2.0, "mode": "fast", "names": ["a", "b"]}

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(
            ops.symbolic_multi_out(
                "mine::Pair",
                (x, None, x),
                attributes,
                dtypes=(torch.float32, torch.int64),
                shapes=(x.shape, (3,)),
                version=1,
            )
        )

    program = gp.onnx.export(fn, (x,), dynamic_shapes=SPEC)
    (node,) = program.model_proto.graph.node
    assert (node.op_type, node.domain, list(node.input)) == ("Pair", "mine", ["x", "", "x"])
    found = {a.name: a for a in node.attribute}
    assert (list(found["axes"].ints), found["scale"].f) == ([0, 1], 2.0)
    assert (found["mode"].s, list(found["names"].strings)) == (b"fast", [b"a", b"b"])
    assert [o.type.tensor_type.elem_type for o in program.model_proto.graph.output] == [1, 7]


def test_operators_with_an_equivalent() -> None:
    q, cos, sin = torch.randn(1, 2, 4, 8), torch.randn(1, 4, 4), torch.randn(1, 4, 4)
    check_onnx(lambda q, cos, sin: ops.rotary_embedding(q, cos, sin), (q, cos, sin))
    made = check_onnx(lambda q: ops.attention(q, q, q, is_causal=True)[0], (q,))
    assert "MatMul" in str(made.model_proto) or "Attention" in str(made.model_proto)
