"""torchdiffeq: solvers of fixed steps in a forward, and of steps that depend on data."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torchdiffeq import odeint, odeint_adjoint

from tests.foreign.rows import Table, noise

TABLE = Table()
SIZES = ((6,), (1,), (9,))


class ODE(nn.Module):
    def __init__(self, times: Any, **options: Any) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
        self.times, self.options = times, options

    def slope(self, t: Tensor, y: Tensor) -> Tensor:
        return self.net(y) * (1 + t)

    def forward(self, y: Tensor) -> Tensor:

        return odeint(self.slope, y, torch.tensor(self.times), **self.options)


class Block(ODE):
    """With its times in a buffer, and a layer behind."""

    def __init__(self, **options: Any) -> None:
        super().__init__([0.0, 1.0], **options)
        self.register_buffer("span", torch.linspace(0, 1, 5))
        self.out = nn.Linear(4, 2)

    def forward(self, y: Tensor) -> Tensor:

        found = odeint_adjoint(self.slope, y, self.span, adjoint_params=(), **self.options)
        return self.out(found[-1])


for method in ("euler", "midpoint", "rk4", "explicit_adams", "heun3"):
    TABLE.add(
        method,
        lambda method=method: ODE([0.0, 0.5, 1.0], method=method).eval(),
        lambda n: (noise(n, 4),),
        SIZES,
    )
TABLE.add(
    "euler_step_size",
    lambda: ODE([0.0, 1.0], method="euler", options={"step_size": 0.25}).eval(),
    lambda n: (noise(n, 4),),
    SIZES,
)
TABLE.add("rk4_adjoint", lambda: Block(method="rk4").eval(), lambda n: (noise(n, 4),), SIZES)
TABLE.add(
    "dopri5",
    lambda: ODE([0.0, 1.0], method="dopri5").eval(),
    lambda n: (noise(n, 4),),
    SIZES,
    refused="GP120",
)
