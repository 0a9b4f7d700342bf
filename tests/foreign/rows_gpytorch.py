"""GPyTorch: kernels, posteriors of a trained process, approximate ones."""

from __future__ import annotations

from typing import Any

import gpytorch
import linear_operator
import torch
from gpytorch import variational
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from torch import Tensor, nn

from tests.foreign.rows import Call, Table, noise, positive

TABLE = Table()
SIZES = ((6,), (1,), (9,))


def kernel(name: str, **config: Any) -> Any:
    def build() -> nn.Module:

        made = getattr(gpytorch.kernels, name)(**config)
        return Call(lambda k, x, y: k(x, y).to_dense(), made).eval()

    return build


def points(n: int) -> tuple[Tensor, Tensor]:
    return noise(n, 3), noise(n + 2, 3)


for name, config in (
    ("RBFKernel", {"ard_num_dims": 3}),
    ("MaternKernel", {"nu": 2.5}),
    ("PeriodicKernel", {}),
    ("LinearKernel", {}),
    ("PolynomialKernel", {"power": 2}),
    ("RQKernel", {}),
    ("CosineKernel", {}),
    ("RFFKernel", {"num_samples": 5, "num_dims": 3}),
    ("SpectralMixtureKernel", {"num_mixtures": 2, "ard_num_dims": 3}),
):
    TABLE.add(name, kernel(name, **config), points, SIZES)


def scaled() -> nn.Module:

    made = ScaleKernel(RBFKernel()) + ScaleKernel(MaternKernel(nu=1.5)) * RBFKernel()
    return Call(lambda k, x, y: k(x, y).to_dense(), made).eval()


def exact() -> nn.Module:

    x, y = torch.linspace(0, 1, 10), torch.sin(torch.linspace(0, 6, 10))

    class Model(gpytorch.models.ExactGP):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood())
            self.mean = gpytorch.means.ConstantMean()
            self.covariance = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.covariance(x))

    def predict(model: Any, x: Tensor) -> Any:
        with gpytorch.settings.fast_pred_var(), linear_operator.settings.trace_mode():
            found = model(x)
        return found.mean, found.lazy_covariance_matrix.diagonal()

    return Call(predict, Model().eval()).eval()


def approximate() -> nn.Module:

    class Model(gpytorch.models.ApproximateGP):  # type: ignore[misc]
        def __init__(self) -> None:
            inducing = positive(5, 3)
            strategy = variational.VariationalStrategy(
                self, inducing, variational.CholeskyVariationalDistribution(5)
            )
            super().__init__(strategy)
            self.mean = gpytorch.means.ConstantMean()
            self.covariance = gpytorch.kernels.RBFKernel()

        def forward(self, x: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.covariance(x))

    def predict(model: Any, x: Tensor) -> Any:
        with linear_operator.settings.trace_mode():
            found = model(x)
        return found.mean, found.lazy_covariance_matrix.diagonal()

    model = Model().eval()
    model.variational_strategy.variational_params_initialized.fill_(1)
    return Call(predict, model).eval()


def deep_kernel() -> nn.Module:

    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    return Call(lambda k, f, x, y: k(f(x), f(y)).to_dense(), RBFKernel(), net).eval()


def likelihood() -> nn.Module:

    def predict(like: Any, x: Tensor) -> Any:
        found = like(gpytorch.distributions.MultivariateNormal(x, torch.eye(4)))
        return found.mean, found.variance

    return Call(predict, gpytorch.likelihoods.GaussianLikelihood()).eval()


TABLE.add("ScaleKernel", scaled, points, SIZES)
TABLE.add("deep_kernel", deep_kernel, points, SIZES)
TABLE.add("ExactGP", exact, lambda n: (positive(n),), SIZES)
TABLE.add("ApproximateGP", approximate, lambda n: (noise(n, 3),), SIZES)
TABLE.add("GaussianLikelihood", likelihood, lambda n: (noise(n, 4),), SIZES, refused="GP120")
