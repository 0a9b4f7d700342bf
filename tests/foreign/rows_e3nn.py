"""e3nn: equivariant layers over any number of points."""

from __future__ import annotations

from typing import Any

from e3nn import nn as layers
from e3nn import o3
from e3nn.math import soft_one_hot_linspace
from e3nn.nn import FullyConnectedNet
from torch import Tensor, nn

from tests.foreign.rows import Call, Table, integers, noise

TABLE = Table()
SIZES = ((6,), (1,), (9,))


def of(name: str, *args: Any, **config: Any) -> Any:
    def build() -> nn.Module:

        return getattr(o3, name, None) or getattr(layers, name)

    return lambda: build()(*args, **config).eval()


def add(name: str, build: Any, *features: int) -> None:
    TABLE.add(name, build, lambda n: tuple(noise(n, f) for f in features), SIZES)


def function(call: Any, *modules: Any) -> Any:
    return lambda: Call(call, *(make() for make in modules)).eval()


def harmonics(x: Tensor) -> Tensor:

    return o3.spherical_harmonics([0, 1, 2], x, normalize=True, normalization="component")

    return o3.rand_matrix.__globals__["angles_to_matrix"](x[:, 0], x[:, 1], x[:, 2])


def wigner(x: Tensor) -> Tensor:

    return o3.wigner_D(2, x[:, 0], x[:, 1], x[:, 2])


def convolution() -> nn.Module:

    class Convolution(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.irreps_sh = o3.Irreps.spherical_harmonics(2)
            self.tp = o3.FullyConnectedTensorProduct(
                "4x0e + 2x1o", self.irreps_sh, "4x0e + 2x1o", shared_weights=False
            )
            self.fc = FullyConnectedNet([5, 8, self.tp.weight_numel], lambda x: x.relu())

        def forward(self, x: Tensor, pos: Tensor, edges: Tensor) -> Tensor:
            src, dst = edges
            vec = pos[src] - pos[dst]
            sh = o3.spherical_harmonics(self.irreps_sh, vec, True, normalization="component")
            emb = soft_one_hot_linspace(
                vec.norm(dim=1), 0.0, 2.0, 5, basis="smooth_finite", cutoff=True
            )
            out = self.tp(x[src], sh, self.fc(emb))
            return x.new_zeros(x.shape).index_add(0, dst, out) / 2.0

    return Convolution().eval()


add("Linear", of("Linear", "4x0e + 2x1o", "3x0e + 2x1o"), 10)
add("SphericalHarmonics", of("SphericalHarmonics", [0, 1, 2, 3], True, "component"), 3)
add("spherical_harmonics", function(harmonics), 3)
add(
    "FullyConnectedTensorProduct",
    of("FullyConnectedTensorProduct", "4x0e + 2x1o", "1x0e + 1x1o", "3x0e + 1x1o"),
    10,
    4,
)
add("ElementwiseTensorProduct", of("ElementwiseTensorProduct", "4x0e + 2x1o", "6x0e"), 10, 6)
add("FullTensorProduct", of("FullTensorProduct", "2x0e + 1x1o", "1x1o"), 5, 3)
add("TensorSquare", of("TensorSquare", "2x0e + 1x1o"), 5)
add("Norm", of("Norm", "4x0e + 2x1o"), 10)
add(
    "Gate",
    lambda: layers.Gate(
        "4x0e", [lambda x: x.relu()], "2x0e", [lambda x: x.sigmoid()], "2x1o"
    ).eval(),
    12,
)
add("BatchNorm", lambda: layers.BatchNorm("4x0e + 2x1o").eval(), 10)
add(
    "NormActivation", lambda: layers.NormActivation("4x0e + 2x1o", lambda x: x.sigmoid()).eval(), 10
)
add("FullyConnectedNet", lambda: layers.FullyConnectedNet([5, 16, 3], lambda x: x.tanh()).eval(), 5)
add("S2Activation", lambda: layers.S2Activation("0e + 1o + 2e", lambda x: x.tanh(), 8).eval(), 9)
add("wigner_D", function(wigner), 3)
add("angles_to_matrix", function(lambda x: o3.angles_to_matrix(x[:, 0], x[:, 1], x[:, 2])), 3)
add(
    "soft_one_hot",
    function(lambda x: soft_one_hot_linspace(x.norm(dim=1), 0.0, 3.0, 8, "gaussian", True)),
    3,
)
TABLE.add(
    "convolution",
    convolution,
    lambda n, e: (noise(n, 10), noise(n, 3), integers(n, 2, e)),
    ((6, 20), (4, 9), (8, 31)),
)
