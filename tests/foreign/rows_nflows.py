"""nflows: densities and samples of flows."""

from __future__ import annotations

from typing import Any

import nflows.transforms
import torch
from nflows import transforms
from nflows.distributions.normal import ConditionalDiagonalNormal, StandardNormal
from nflows.flows.base import Flow
from nflows.nn.nets import ResidualNet
from nflows.transforms import base
from nflows.transforms.base import CompositeTransform
from torch import Tensor, nn

from tests.foreign.rows import Call, Table, noise, positive

TABLE = Table()
SIZES = ((6,), (1,), (9,))


def flow(*layers: Any) -> Any:
    def build() -> nn.Module:

        made = base.CompositeTransform([layer() for layer in layers])
        model = Flow(made, StandardNormal([4]))
        return Call(lambda m, x: m.log_prob(x), model).eval()

    return build


def layer(name: str, *args: Any, **config: Any) -> Any:
    def build() -> nn.Module:

        return getattr(nflows.transforms, name)(*args, **config)

    return build


def coupling(name: str, **config: Any) -> Any:
    def build() -> nn.Module:

        return getattr(transforms, name)(
            torch.tensor([1, 0, 1, 0]),
            lambda i, o: ResidualNet(i, o, hidden_features=8, num_blocks=1),
            **config,
        )

    return build


MADE = {"features": 4, "hidden_features": 8}
SPLINE = {"tails": "linear", "num_bins": 4, "tail_bound": 3.0}
for name, layers in (
    ("maf", [layer("MaskedAffineAutoregressiveTransform", **MADE), layer("ReversePermutation", 4)]),
    ("realnvp", [coupling("AffineCouplingTransform"), layer("RandomPermutation", 4)]),
    ("rq_spline_coupling", [coupling("PiecewiseRationalQuadraticCouplingTransform", **SPLINE)]),
    ("quadratic_spline_coupling", [coupling("PiecewiseQuadraticCouplingTransform", **SPLINE)]),
    (
        "linear_spline",
        [
            layer("PointwiseAffineTransform", 0.0, 0.1),
            layer("Sigmoid"),
            layer("MaskedPiecewiseLinearAutoregressiveTransform", 4, 4, 8),
        ],
    ),
    (
        "rq_spline_autoregressive",
        [layer("MaskedPiecewiseRationalQuadraticAutoregressiveTransform", **MADE, **SPLINE)],
    ),
    ("umnn_free_linear", [layer("LULinear", 4), layer("BatchNorm", 4)]),
    ("svd_linear", [layer("SVDLinear", 4, num_householder=2)]),
    ("qr_linear", [layer("QRLinear", 4, num_householder=2)]),
    ("householder", [layer("HouseholderSequence", 4, 3)]),
    ("naive_linear", [layer("NaiveLinear", 4)]),
    ("actnorm", [layer("ActNorm", 4)]),
    ("leaky_relu", [layer("LeakyReLU"), layer("Tanh")]),
    ("sigmoid", [layer("Sigmoid"), layer("Logit")]),
):
    # Some branch on whether any number is within bounds.
    refused = "GP120" if "spline" in name and name != "linear_spline" else ""
    TABLE.add(name, flow(*layers), lambda n: (noise(n, 4),), SIZES, refused=refused)


def inverse() -> nn.Module:

    made = CompositeTransform([coupling("PiecewiseRationalQuadraticCouplingTransform", **SPLINE)()])
    return Call(lambda m, x: m.inverse(x)[0], made).eval()


def conditional(m: Any, x: Tensor, y: Tensor) -> Tensor:
    return m.log_prob(x, context=y)


def with_context() -> nn.Module:

    made = layer("MaskedAffineAutoregressiveTransform", **MADE, context_features=3)()
    base = ConditionalDiagonalNormal([4], context_encoder=nn.Linear(3, 8))
    return Call(conditional, Flow(made, base)).eval()


TABLE.add("inverse_spline", inverse, lambda n: (noise(n, 4),), SIZES, refused="GP120")
TABLE.add("conditional", with_context, lambda n: (noise(n, 4), positive(n, 3)), SIZES)
