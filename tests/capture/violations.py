"""Programs that need more of their sizes than their specs say, and the errors in full.

One row per error, so that the file is long and no line of it depends on another. `test_constraints`
says what must hold of each.
"""
# ruff: noqa: E501  messages stand here as they are shown

from __future__ import annotations

import dataclasses
import textwrap
from typing import Any

import torch

import graphport as gp
from graphport import Dim


@dataclasses.dataclass
class Point:
    x: Any
    y: Any


gp.register_dataclass(Point, serialized_type_name="tests.capture.violations.Point")

n, m, k = gp.dims("n", "m", "k")


def t(*shape: int) -> torch.Tensor:
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape)


@dataclasses.dataclass(frozen=True)
class Case:
    source: str
    """Of the program `f`."""
    args: tuple[Any, ...]
    dynamic_shapes: Any
    text: str
    """Of the error; its suggested fixes are parsed back and applied."""
    other: tuple[Any, ...] | None = None
    """Other sizes that the corrected spec allows; None when it fixes them all."""
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    other_kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    guards: str = "error"

    @property
    def code(self) -> str:
        return textwrap.dedent(self.source).lstrip("\n")


CASES: dict[str, Case] = {
    # Fixed values
    "a branch on a value": Case(
        """
            def f(x):
                if x.shape[0] == 3:
                    return x + 1
                return x
        """,
        (t(3),),
        {"x": {0: n}},
        """
            GP111 Constraints violated (n)! The program needs more of its sizes than dynamic_shapes says:
              - You marked *args[0].shape[0] as dynamic (n) but your code specialized it to be a constant (3)
                  at program.py:N in f: if x.shape[0] == 3:
            Suggested fixes:
              n = 3
        """,
    ),
    "an operator with a value": Case(
        """
            def f(x):
                return x + torch.ones(3)
        """,
        (t(3),),
        {"x": {0: n}},
        """
            GP111 Constraints violated (n)! The program needs more of its sizes than dynamic_shapes says:
              - You marked *args[0].shape[0] as dynamic (n) but your code specialized it to be a constant (3)
                  at program.py:N in f: return x + torch.ones(3)
            Suggested fixes:
              n = 3
        """,
    ),
    "a layer with a value": Case(
        """
            class Model(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.layers = torch.nn.Sequential(torch.nn.Linear(4, 2))

                def forward(self, x):
                    return self.layers(x)


            f = Model()
        """,
        (t(3, 4),),
        {"x": (n, m)},
        """
            GP111 Constraints violated (m)! The program needs more of its sizes than dynamic_shapes says:
              - You marked *args[0].shape[1] as dynamic (m) but your code specialized it to be a constant (4)
                  at program.py:N in Model.forward: return self.layers(x)      (layers.0)
            Suggested fixes:
              m = 4
        """,
        other=(t(5, 4),),
    ),
    "a loop over rows": Case(
        """
            def f(x):
                return torch.stack([row * 2 for row in x])
        """,
        (t(3, 2),),
        {"x": {0: n}},
        """
            GP111 Constraints violated (n)! The program needs more of its sizes than dynamic_shapes says:
              - You marked *args[0].shape[0] as dynamic (n) but your code specialized it to be a constant (3)
                  at program.py:N in f: return torch.stack([row * 2 for row in x])
            Suggested fixes:
              n = 3
              # or leave it open: gp.scan(step, init, xs) or torch.while_loop in place of the loop
        """,
    ),
    "a loop over a range": Case(
        """
            def f(x):
                for i in range(x.shape[0]):
                    x = x + i
                return x
        """,
        (t(3),),
        {"x": {0: n}},
        """
            GP111 Constraints violated (n)! The program needs more of its sizes than dynamic_shapes says:
              - You marked *args[0].shape[0] as dynamic (n) but your code specialized it to be a constant (3)
                  at program.py:N in f: for i in range(x.shape[0]):
            Suggested fixes:
              n = 3
              # or leave it open: gp.scan(step, init, xs) or torch.while_loop in place of the loop
        """,
    ),
    "an assertion of a value": Case(
        """
            def f(x):
                assert x.shape[0] == 3
                return x
        """,
        (t(3),),
        {"x": {0: n}},
        """
            GP111 Constraints violated (n)! The program needs more of its sizes than dynamic_shapes says:
              - You marked *args[0].shape[0] as dynamic (n) but your code specialized it to be a constant (3)
                  at program.py:N in f: assert x.shape[0] == 3
            Suggested fixes:
              n = 3
        """,
    ),
    "an empty example": Case(
        """
            def f(x):
                return x + 1 if x.shape[0] == 0 else x
        """,
        (t(0),),
        {"x": {0: n}},
        """
            GP111 Constraints violated (n)! The program needs more of its sizes than dynamic_shapes says:
              - You marked *args[0].shape[0] as dynamic (n) but your code specialized it to be a constant (0)
                  at program.py:N in f: return x + 1 if x.shape[0] == 0 else x
            Suggested fixes:
              n = 0
        """,
    ),
    "a 1 that is broadcast": Case(
        """
            def f(x, y):
                return x + y
        """,
        (t(1, 3), t(5, 3)),
        {"x": {0: n}, "y": {0: m}},
        """
            GP111 Constraints violated (n)! The program needs more of its sizes than dynamic_shapes says:
              - You marked *args[0].shape[0] as dynamic (n) but your code specialized it to be a constant (1)
                  at program.py:N in f: return x + y
            Suggested fixes:
              n = 1
        """,
        other=(t(1, 3), t(2, 3)),
    ),
    "a 1 that is squeezed": Case(
        """
            def f(x):
                return x.squeeze(0)
        """,
        (t(1, 3),),
        {"x": {0: n}},
        """
            GP111 Constraints violated (n)! The program needs more of its sizes than dynamic_shapes says:
              - You marked *args[0].shape[0] as dynamic (n) but your code specialized it to be a constant (1)
                  at program.py:N in f: return x.squeeze(0)
            Suggested fixes:
              n = 1
        """,
    ),
    "elements of one dynamic dim": Case(
        """
            def f(x):
                return x if x.numel() == 12 else x + 1
        """,
        (t(3, 4),),
        {"x": (n, None)},
        """
            GP111 Constraints violated (n)! The program needs more of its sizes than dynamic_shapes says:
              - You marked *args[0].shape[0] as dynamic (n) but your code specialized it to be a constant (3)
                  at program.py:N in f: return x if x.numel() == 12 else x + 1
            Suggested fixes:
              n = 3
        """,
    ),
    # Ranges
    "an upper bound": Case(
        """
            def f(x):
                return x + 1 if x.shape[0] <= 6 else x - 1
        """,
        (t(5),),
        {"x": {0: Dim("n", min=3)}},
        """
            GP111 Constraints violated (n)! The program needs more of its sizes than dynamic_shapes says:
              - Not all values of n = *args[0].shape[0] in the specified range [3, oo] satisfy the generated guard n <= 6
                  at program.py:N in f: return x + 1 if x.shape[0] <= 6 else x - 1
            Suggested fixes:
              n = Dim('n', min=3, max=6)
        """,
        other=(t(6),),
    ),
    "a lower bound": Case(
        """
            def f(x):
                return x + 1 if x.shape[0] > 4 else x - 1
        """,
        (t(5),),
        {"x": {0: n}},
        """
            GP111 Constraints violated (n)! The program needs more of its sizes than dynamic_shapes says:
              - Not all values of n = *args[0].shape[0] in the specified range [0, oo] satisfy the generated guard n >= 5
                  at program.py:N in f: return x + 1 if x.shape[0] > 4 else x - 1
            Suggested fixes:
              n = Dim('n', min=5)
        """,
        other=(t(8),),
    ),
    "two bounds": Case(
        """
            def f(x):
                return x + 1 if 2 < x.shape[0] < 9 else x - 1
        """,
        (t(5),),
        {"x": {0: n}},
        """
            GP111 Constraints violated (n)! The program needs more of its sizes than dynamic_shapes says:
              - Not all values of n = *args[0].shape[0] in the specified range [0, oo] satisfy the generated guard n >= 3
                  at program.py:N in f: return x + 1 if 2 < x.shape[0] < 9 else x - 1
              - Not all values of n = *args[0].shape[0] in the specified range [0, oo] satisfy the generated guard n <= 8
                  at program.py:N in f: return x + 1 if 2 < x.shape[0] < 9 else x - 1
            Suggested fixes:
              n = Dim('n', min=3, max=8)
        """,
        other=(t(8),),
    ),
    "two bounds that meet": Case(
        """
            def f(x):
                return x + 1 if 4 < x.shape[0] < 6 else x - 1
        """,
        (t(5),),
        {"x": {0: n}},
        """
            GP111 Constraints violated (n)! The program needs more of its sizes than dynamic_shapes says:
              - Not all values of n = *args[0].shape[0] in the specified range [0, oo] satisfy the generated guard n >= 5
                  at program.py:N in f: return x + 1 if 4 < x.shape[0] < 6 else x - 1
              - Not all values of n = *args[0].shape[0] in the specified range [0, oo] satisfy the generated guard n <= 5
                  at program.py:N in f: return x + 1 if 4 < x.shape[0] < 6 else x - 1
            Suggested fixes:
              n = 5
        """,
    ),
    "a bound from a slice": Case(
        """
            def f(x):
                return x[:4] + torch.ones(4)
        """,
        (t(6),),
        {"x": {0: n}},
        """
            GP111 Constraints violated (n)! The program needs more of its sizes than dynamic_shapes says:
              - Not all values of n = *args[0].shape[0] in the specified range [0, oo] satisfy the generated guard n >= 4
                  at program.py:N in f: return x[:4] + torch.ones(4)
            Suggested fixes:
              n = Dim('n', min=4)
        """,
        other=(t(4),),
    ),
    "a bound from a quotient": Case(
        """
            def f(x):
                return torch.nn.functional.max_pool1d(x, 3) + torch.ones(2)
        """,
        (t(1, 1, 7),),
        {"x": {2: n}},
        """
            GP111 Constraints violated (n)! The program needs more of its sizes than dynamic_shapes says:
              - Not all values of n = *args[0].shape[2] in the specified range [0, oo] satisfy the generated guard n//3 == 2
                  at program.py:N in f: return torch.nn.functional.max_pool1d(x, 3) + torch.ones(2)
            Suggested fixes:
              n = Dim('n', min=6, max=8)
        """,
        other=(t(1, 1, 8),),
    ),
    "a bound from a float": Case(
        """
            def f(x):
                return x[: int(x.shape[0] * 0.5)] + torch.ones(3)
        """,
        (t(6),),
        {"x": {0: n}},
        """
            GP111 Constraints violated (n)! The program needs more of its sizes than dynamic_shapes says:
              - Not all values of n = *args[0].shape[0] in the specified range [0, oo] satisfy the generated guard n//2 == 3
                  at program.py:N in f: return x[: int(x.shape[0] * 0.5)] + torch.ones(3)
            Suggested fixes:
              n = Dim('n', min=6, max=7)
        """,
        other=(t(7),),
    ),
    "a bound from max": Case(
        """
            def f(x):
                return torch.ones(max(x.shape[0], 4)) + torch.ones(4)
        """,
        (t(3),),
        {"x": {0: n}},
        """
            GP111 Constraints violated (n)! The program needs more of its sizes than dynamic_shapes says:
              - Not all values of n = *args[0].shape[0] in the specified range [0, oo] satisfy the generated guard n <= 4
                  at program.py:N in f: return torch.ones(max(x.shape[0], 4)) + torch.ones(4)
            Suggested fixes:
              n = Dim('n', max=4)
        """,
        other=(t(2),),
    ),
    "a bound from min": Case(
        """
            def f(x):
                return torch.ones(min(x.shape[0], 4)) + torch.ones(4)
        """,
        (t(6),),
        {"x": {0: n}},
        """
            GP111 Constraints violated (n)! The program needs more of its sizes than dynamic_shapes says:
              - Not all values of n = *args[0].shape[0] in the specified range [0, oo] satisfy the generated guard n >= 4
                  at program.py:N in f: return torch.ones(min(x.shape[0], 4)) + torch.ones(4)
            Suggested fixes:
              n = Dim('n', min=4)
        """,
        other=(t(4),),
    ),
    "the second of two conditions": Case(
        """
            def f(x):
                return x if x.shape[0] < 3 or x.shape[0] > 5 else -x
        """,
        (t(6),),
        {"x": {0: n}},
        """
            GP111 Constraints violated (n)! The program needs more of its sizes than dynamic_shapes says:
              - Not all values of n = *args[0].shape[0] in the specified range [0, oo] satisfy the generated guard n >= 3
                  at program.py:N in f: return x if x.shape[0] < 3 or x.shape[0] > 5 else -x
              - Not all values of n = *args[0].shape[0] in the specified range [0, oo] satisfy the generated guard n >= 6
                  at program.py:N in f: return x if x.shape[0] < 3 or x.shape[0] > 5 else -x
            Suggested fixes:
              n = Dim('n', min=6)
        """,
        other=(t(9),),
    ),
    # Relations
    "equal sizes": Case(
        """
            def f(x, y):
                return x + y
        """,
        (t(7), t(7)),
        {"x": {0: n}, "y": {0: m}},
        """
            GP111 Constraints violated (m)! The program needs more of its sizes than dynamic_shapes says:
              - The values of m = *args[1].shape[0] and n = *args[0].shape[0] must always be related to the values of n by m = n
                  at program.py:N in f: return x + y
            Suggested fixes:
              m = n
        """,
        other=(t(5), t(5)),
    ),
    "equal sizes with ranges": Case(
        """
            def f(x, y):
                return x + y
        """,
        (t(7), t(7)),
        {"x": {0: Dim("n", min=2, max=20)}, "y": {0: Dim("m", min=4, max=30)}},
        """
            GP111 Constraints violated (n, m)! The program needs more of its sizes than dynamic_shapes says:
              - The values of m = *args[1].shape[0] and n = *args[0].shape[0] must always be related to the values of n by m = n
                  at program.py:N in f: return x + y
            Suggested fixes:
              n = Dim('n', min=4, max=20)
              m = n
        """,
        other=(t(4), t(4)),
    ),
    "equal sizes of one input": Case(
        """
            def f(x):
                return x + x.T
        """,
        (t(4, 4),),
        {"x": (n, m)},
        """
            GP111 Constraints violated (m)! The program needs more of its sizes than dynamic_shapes says:
              - The values of m = *args[0].shape[1] and n = *args[0].shape[0] must always be related to the values of n by m = n
                  at program.py:N in f: return x + x.T
            Suggested fixes:
              m = n
        """,
        other=(t(5, 5),),
    ),
    "three equal sizes": Case(
        """
            def f(x, y, z):
                return x + y + z
        """,
        (t(4), t(4), t(4)),
        {"x": (n,), "y": (m,), "z": (k,)},
        """
            GP111 Constraints violated (m, k)! The program needs more of its sizes than dynamic_shapes says:
              - The values of m = *args[1].shape[0] and n = *args[0].shape[0] must always be related to the values of n by m = n
                  at program.py:N in f: return x + y + z
              - The values of k = *args[2].shape[0] and n = *args[0].shape[0] must always be related to the values of n by k = n
                  at program.py:N in f: return x + y + z
            Suggested fixes:
              m = n
              k = n
        """,
        other=(t(5), t(5), t(5)),
    ),
    "inner sizes of a product": Case(
        """
            def f(x, y):
                return x @ y
        """,
        (t(2, 7), t(7, 3)),
        {"x": (n, k), "y": {0: m}},
        """
            GP111 Constraints violated (m)! The program needs more of its sizes than dynamic_shapes says:
              - The values of m = *args[1].shape[0] and k = *args[0].shape[1] must always be related to the values of k by m = k
                  at program.py:N in f: return x @ y
            Suggested fixes:
              m = k
        """,
        other=(t(4, 5), t(5, 3)),
    ),
    "a branch on equality": Case(
        """
            def f(x, y):
                return x + 1 if x.shape[0] == y.shape[0] else y
        """,
        (t(7), t(7)),
        {"x": {0: n}, "y": {0: m}},
        """
            GP111 Constraints violated (m)! The program needs more of its sizes than dynamic_shapes says:
              - The values of m = *args[1].shape[0] and n = *args[0].shape[0] must always be related to the values of n by m = n
                  at program.py:N in f: return x + 1 if x.shape[0] == y.shape[0] else y
            Suggested fixes:
              m = n
        """,
        other=(t(5), t(5)),
    ),
    "an offset": Case(
        """
            def f(x, y):
                return x + y[1:]
        """,
        (t(5), t(6)),
        {"x": {0: Dim("n", min=3, max=6)}, "y": {0: Dim("m", min=4, max=7)}},
        """
            GP111 Constraints violated (m)! The program needs more of its sizes than dynamic_shapes says:
              - The values of m = *args[1].shape[0] and n = *args[0].shape[0] must always be related to the values of n by m = n + 1
                  at program.py:N in f: return x + y[1:]
            Suggested fixes:
              m = n + 1
        """,
        other=(t(4), t(5)),
    ),
    "a factor": Case(
        """
            def f(x, y):
                return torch.cat([x, x]) + y
        """,
        (t(5), t(10)),
        {"x": {0: n}, "y": {0: m}},
        """
            GP111 Constraints violated (m)! The program needs more of its sizes than dynamic_shapes says:
              - The values of m = *args[1].shape[0] and n = *args[0].shape[0] must always be related to the values of n by m = 2*n
                  at program.py:N in f: return torch.cat([x, x]) + y
            Suggested fixes:
              m = 2*n
        """,
        other=(t(4), t(8)),
    ),
    "a factor of a later dim": Case(
        """
            def f(x, y):
                return x + torch.cat([y, y])
        """,
        (t(10), t(5)),
        {"x": {0: n}, "y": {0: m}},
        """
            GP111 Constraints violated (n)! The program needs more of its sizes than dynamic_shapes says:
              - The values of n = *args[0].shape[0] and m = *args[1].shape[0] must always be related to the values of m by n = 2*m
                  at program.py:N in f: return x + torch.cat([y, y])
            Suggested fixes:
              n = 2*m
        """,
        other=(t(8), t(4)),
    ),
    "a factor and an offset": Case(
        """
            def f(x, y):
                return torch.cat([x, x, x])[1:] + y
        """,
        (t(5), t(14)),
        {"x": {0: n}, "y": {0: m}},
        """
            GP111 Constraints violated (n, m)! The program needs more of its sizes than dynamic_shapes says:
              - The values of m = *args[1].shape[0] and n = *args[0].shape[0] must always be related to the values of n by m = 3*n - 1
                  at program.py:N in f: return torch.cat([x, x, x])[1:] + y
            Suggested fixes:
              n = Dim('n', min=1)
              m = 3*n - 1
        """,
        other=(t(4), t(11)),
    ),
    "two factors": Case(
        """
            def f(x, y):
                return torch.cat([x, x, x]) + torch.cat([y, y])
        """,
        (t(4), t(6)),
        {"x": {0: n}, "y": {0: m}},
        """
            GP111 Constraints violated (n, m)! The program needs more of its sizes than dynamic_shapes says:
              - The values of m = *args[1].shape[0] and n = *args[0].shape[0] must always be related to the values of n by 2*m = 3*n
                  at program.py:N in f: return torch.cat([x, x, x]) + torch.cat([y, y])
            Suggested fixes:
              _n = Dim('_n')
              n = 2*_n
              m = 3*_n
        """,
        other=(t(2), t(3)),
    ),
    "two factors and an offset": Case(
        """
            def f(x, y):
                return torch.cat([x, x, x])[1:] + torch.cat([y, y])
        """,
        (t(5), t(7)),
        {"x": {0: n}, "y": {0: m}},
        """
            GP111 Constraints violated (n, m)! The program needs more of its sizes than dynamic_shapes says:
              - The values of m = *args[1].shape[0] and n = *args[0].shape[0] must always be related to the values of n by 2*m = 3*n - 1
                  at program.py:N in f: return torch.cat([x, x, x])[1:] + torch.cat([y, y])
            Suggested fixes:
              _n = Dim('_n')
              n = 2*_n + 1
              m = 3*_n + 1
        """,
        other=(t(3), t(4)),
    ),
    "a chain": Case(
        """
            def f(x, y, z):
                return x + y, y[1:] + z[2:]
        """,
        (t(6), t(6), t(7)),
        {"x": {0: n}, "y": {0: m}, "z": {0: k}},
        """
            GP111 Constraints violated (m, k)! The program needs more of its sizes than dynamic_shapes says:
              - The values of m = *args[1].shape[0] and n = *args[0].shape[0] must always be related to the values of n by m = n
                  at program.py:N in f: return x + y, y[1:] + z[2:]
              - The values of k = *args[2].shape[0] and m = *args[1].shape[0] must always be related to the values of m by k = m + 1
                  at program.py:N in f: return x + y, y[1:] + z[2:]
            Suggested fixes:
              m = n
              k = n + 1
        """,
        other=(t(5), t(5), t(6)),
    ),
    "a chain with a value at its end": Case(
        """
            def f(x, y, z):
                return x + y, y + z[1:], z + torch.ones(7)
        """,
        (t(6), t(6), t(7)),
        {"x": {0: n}, "y": {0: m}, "z": {0: k}},
        """
            GP111 Constraints violated (n, m, k)! The program needs more of its sizes than dynamic_shapes says:
              - The values of m = *args[1].shape[0] and n = *args[0].shape[0] must always be related to the values of n by m = n
                  at program.py:N in f: return x + y, y + z[1:], z + torch.ones(7)
              - The values of k = *args[2].shape[0] and m = *args[1].shape[0] must always be related to the values of m by k = m + 1
                  at program.py:N in f: return x + y, y + z[1:], z + torch.ones(7)
              - You marked *args[2].shape[0] as dynamic (k) but your code specialized it to be a constant (7)
                  at program.py:N in f: return x + y, y + z[1:], z + torch.ones(7)
            Suggested fixes:
              n = 6
              m = 6
              k = 7
        """,
    ),
    "relations that meet in one point": Case(
        """
            def f(x, y):
                return torch.cat([x, x]) + y, x + y[4:]
        """,
        (t(4), t(8)),
        {"x": {0: n}, "y": {0: m}},
        """
            GP111 Constraints violated (n, m)! The program needs more of its sizes than dynamic_shapes says:
              - The values of m = *args[1].shape[0] and n = *args[0].shape[0] must always be related to the values of n by m = 2*n
                  at program.py:N in f: return torch.cat([x, x]) + y, x + y[4:]
              - The values of m = *args[1].shape[0] and n = *args[0].shape[0] must always be related to the values of n by m = n + 4
                  at program.py:N in f: return torch.cat([x, x]) + y, x + y[4:]
            Suggested fixes:
              n = 4
              m = 8
        """,
    ),
    "ranges that are handed on": Case(
        """
            def f(x, y):
                z = x + y
                return z + 1 if y.shape[0] < 9 else z
        """,
        (t(6), t(6)),
        {"x": {0: Dim("n", min=5)}, "y": {0: Dim("m", max=20)}},
        """
            GP111 Constraints violated (n, m)! The program needs more of its sizes than dynamic_shapes says:
              - The values of m = *args[1].shape[0] and n = *args[0].shape[0] must always be related to the values of n by m = n
                  at program.py:N in f: z = x + y
              - Not all values of m = *args[1].shape[0] in the specified range [0, 20] satisfy the generated guard m <= 8
                  at program.py:N in f: return z + 1 if y.shape[0] < 9 else z
            Suggested fixes:
              n = Dim('n', min=5, max=8)
              m = n
        """,
        other=(t(8), t(8)),
    ),
    # Divisibility
    "a multiple": Case(
        """
            def f(x):
                return x.reshape(-1, 4)
        """,
        (t(12),),
        {"x": {0: n}},
        """
            GP111 Constraints violated (n)! The program needs more of its sizes than dynamic_shapes says:
              - Not all values of n = *args[0].shape[0] in the specified range [0, oo] satisfy the generated guard n % 4 == 0
                  at program.py:N in f: return x.reshape(-1, 4)
            Suggested fixes:
              _n = Dim('_n')
              n = 4*_n
        """,
        other=(t(8),),
    ),
    "a multiple by a constant size": Case(
        """
            def f(x):
                return x.reshape(-1, 4)
        """,
        (t(4, 6),),
        {"x": (n, None)},
        """
            GP111 Constraints violated (n)! The program needs more of its sizes than dynamic_shapes says:
              - Not all values of n = *args[0].shape[0] in the specified range [0, oo] satisfy the generated guard n % 2 == 0
                  at program.py:N in f: return x.reshape(-1, 4)
            Suggested fixes:
              _n = Dim('_n')
              n = 2*_n
        """,
        other=(t(2, 6),),
    ),
    "an odd size": Case(
        """
            def f(x):
                return x[::2] if x.shape[0] % 2 == 1 else x
        """,
        (t(11),),
        {"x": {0: n}},
        """
            GP111 Constraints violated (n)! The program needs more of its sizes than dynamic_shapes says:
              - Not all values of n = *args[0].shape[0] in the specified range [0, oo] satisfy the generated guard n % 2 == 1
                  at program.py:N in f: return x[::2] if x.shape[0] % 2 == 1 else x
            Suggested fixes:
              _n = Dim('_n')
              n = 2*_n + 1
        """,
        other=(t(9),),
    ),
    "a remainder in a range": Case(
        """
            def f(x):
                return x[::2] if x.shape[0] % 5 == 3 else x
        """,
        (t(13),),
        {"x": {0: Dim("n", max=20)}},
        """
            GP111 Constraints violated (n)! The program needs more of its sizes than dynamic_shapes says:
              - Not all values of n = *args[0].shape[0] in the specified range [0, 20] satisfy the generated guard n % 5 == 3
                  at program.py:N in f: return x[::2] if x.shape[0] % 5 == 3 else x
            Suggested fixes:
              _n = Dim('_n', min=1, max=4)
              n = 5*_n - 2
        """,
        other=(t(8),),
    ),
    "a remainder of a multiple": Case(
        """
            def f(x):
                return x[::2] if 2 * x.shape[0] % 6 == 2 else x
        """,
        (t(13),),
        {"x": {0: n}},
        """
            GP111 Constraints violated (n)! The program needs more of its sizes than dynamic_shapes says:
              - Not all values of n = *args[0].shape[0] in the specified range [0, oo] satisfy the generated guard n % 3 == 1
                  at program.py:N in f: return x[::2] if 2 * x.shape[0] % 6 == 2 else x
            Suggested fixes:
              _n = Dim('_n')
              n = 3*_n + 1
        """,
        other=(t(10),),
    ),
    "two remainders": Case(
        """
            def f(x):
                return -x if x.shape[0] % 4 == 1 and x.shape[0] % 3 == 2 else x
        """,
        (t(5),),
        {"x": {0: n}},
        """
            GP111 Constraints violated (n)! The program needs more of its sizes than dynamic_shapes says:
              - Not all values of n = *args[0].shape[0] in the specified range [0, oo] satisfy the generated guard n % 4 == 1
                  at program.py:N in f: return -x if x.shape[0] % 4 == 1 and x.shape[0] % 3 == 2 else x
              - Not all values of n = *args[0].shape[0] in the specified range [0, oo] satisfy the generated guard n % 3 == 2
                  at program.py:N in f: return -x if x.shape[0] % 4 == 1 and x.shape[0] % 3 == 2 else x
            Suggested fixes:
              _n = Dim('_n')
              n = 12*_n + 5
        """,
        other=(t(17),),
    ),
    "new roots": Case(
        """
            def f(x, y, z):
                if x.shape[0] >= 5 and x.shape[0] <= 36 and y.shape[0] % 3 == 0:
                    return x + y[1:] + z[3:]
                return x
        """,
        (t(11), t(12), t(14)),
        {"x": (n,), "y": (m,), "z": (k,)},
        """
            GP111 Constraints violated (n, m, k)! The program needs more of its sizes than dynamic_shapes says:
              - Not all values of n = *args[0].shape[0] in the specified range [0, oo] satisfy the generated guard n >= 5
                  at program.py:N in f: if x.shape[0] >= 5 and x.shape[0] <= 36 and y.shape[0] % 3 == 0:
              - Not all values of n = *args[0].shape[0] in the specified range [0, oo] satisfy the generated guard n <= 36
                  at program.py:N in f: if x.shape[0] >= 5 and x.shape[0] <= 36 and y.shape[0] % 3 == 0:
              - Not all values of m = *args[1].shape[0] in the specified range [0, oo] satisfy the generated guard m % 3 == 0
                  at program.py:N in f: if x.shape[0] >= 5 and x.shape[0] <= 36 and y.shape[0] % 3 == 0:
              - The values of m = *args[1].shape[0] and n = *args[0].shape[0] must always be related to the values of n by m = n + 1
                  at program.py:N in f: return x + y[1:] + z[3:]
              - Not all values of k = *args[2].shape[0] in the specified range [0, oo] satisfy the generated guard k >= 3
                  at program.py:N in f: return x + y[1:] + z[3:]
              - The values of k = *args[2].shape[0] and n = *args[0].shape[0] must always be related to the values of n by k = n + 3
                  at program.py:N in f: return x + y[1:] + z[3:]
            Suggested fixes:
              _n = Dim('_n', min=2, max=12)
              n = 3*_n - 1
              m = 3*_n
              k = 3*_n + 2
        """,
        other=(t(8), t(9), t(11)),
    ),
    "a new root whose name is taken": Case(
        """
            def f(x, y):
                return x.reshape(-1, 2), y
        """,
        (t(4), t(6)),
        {"x": {0: n}, "y": {0: Dim("_n")}},
        """
            GP111 Constraints violated (n)! The program needs more of its sizes than dynamic_shapes says:
              - Not all values of n = *args[0].shape[0] in the specified range [0, oo] satisfy the generated guard n % 2 == 0
                  at program.py:N in f: return x.reshape(-1, 2), y
            Suggested fixes:
              __n = Dim('__n')
              n = 2*__n
        """,
        other=(t(6), t(5)),
    ),
    "heads": Case(
        """
            def f(x):
                b, s, c = x.shape
                return x.view(b, s, 4, c // 4).transpose(1, 2)
        """,
        (t(2, 6, 8),),
        {"x": (n, m, k)},
        """
            GP111 Constraints violated (k)! The program needs more of its sizes than dynamic_shapes says:
              - Not all values of k = *args[0].shape[2] in the specified range [0, oo] satisfy the generated guard n*m*k == 4*n*m*(k//4)
                  at program.py:N in f: return x.view(b, s, 4, c // 4).transpose(1, 2)
            Suggested fixes:
              _k = Dim('_k')
              k = 4*_k
              # or check it when the program runs: gp.export(..., guards="runtime_assert")
        """,
        other=(t(3, 4, 12),),
    ),
    # Too complex for a dim
    "a product": Case(
        """
            def f(x, y):
                return x.reshape(-1) + y
        """,
        (t(3, 4), t(12)),
        {"x": (n, m), "y": {0: k}},
        """
            GP111 Specializations unexpectedly required (n, m, k)! The program needs more of its sizes than dynamic_shapes says:
              - n = *args[0].shape[0] must be specialized to 3 because the guards generated for it are too complex: n*m == k
                  at program.py:N in f: return x.reshape(-1) + y
              - m = *args[0].shape[1] must be specialized to 4 because the guards generated for it are too complex: n*m == k
                  at program.py:N in f: return x.reshape(-1) + y
              - k = *args[1].shape[0] must be specialized to 12 because the guards generated for it are too complex: n*m == k
                  at program.py:N in f: return x.reshape(-1) + y
            Suggested fixes:
              n = 3
              m = 4
              k = 12
              # or check it when the program runs: gp.export(..., guards="runtime_assert")
        """,
    ),
    "a product that is a value": Case(
        """
            def f(x):
                return x if x.numel() == 12 else x + 1
        """,
        (t(3, 4),),
        {"x": (n, m)},
        """
            GP111 Specializations unexpectedly required (n, m)! The program needs more of its sizes than dynamic_shapes says:
              - n = *args[0].shape[0] must be specialized to 3 because the guards generated for it are too complex: n*m == 12
                  at program.py:N in f: return x if x.numel() == 12 else x + 1
              - m = *args[0].shape[1] must be specialized to 4 because the guards generated for it are too complex: n*m == 12
                  at program.py:N in f: return x if x.numel() == 12 else x + 1
            Suggested fixes:
              n = 3
              m = 4
              # or check it when the program runs: gp.export(..., guards="runtime_assert")
        """,
    ),
    "a square": Case(
        """
            def f(x, y):
                return x if x.shape[0] * x.shape[0] == y.shape[0] else y
        """,
        (t(3), t(9)),
        {"x": {0: n}, "y": {0: m}},
        """
            GP111 Specializations unexpectedly required (n, m)! The program needs more of its sizes than dynamic_shapes says:
              - n = *args[0].shape[0] must be specialized to 3 because the guards generated for it are too complex: n**2 == m
                  at program.py:N in f: return x if x.shape[0] * x.shape[0] == y.shape[0] else y
              - m = *args[1].shape[0] must be specialized to 9 because the guards generated for it are too complex: n**2 == m
                  at program.py:N in f: return x if x.shape[0] * x.shape[0] == y.shape[0] else y
            Suggested fixes:
              n = 3
              m = 9
              # or check it when the program runs: gp.export(..., guards="runtime_assert")
        """,
    ),
    "a square root": Case(
        """
            def f(x):
                return x if x.shape[0] ** 0.5 == 3 else -x
        """,
        (t(9),),
        {"x": {0: n}},
        """
            GP111 Specializations unexpectedly required (n)! The program needs more of its sizes than dynamic_shapes says:
              - n = *args[0].shape[0] must be specialized to 9 because the guards generated for it are too complex: float(n)**0.5 == 3.0
                  at program.py:N in f: return x if x.shape[0] ** 0.5 == 3 else -x
            Suggested fixes:
              n = 9
              # or check it when the program runs: gp.export(..., guards="runtime_assert")
        """,
    ),
    "a product with -1": Case(
        """
            def f(x):
                return x.view(x.shape[0] - 1, -1)
        """,
        (t(3, 4),),
        {"x": (Dim("n", min=3), Dim("m", max=8000))},
        """
            GP111 Specializations unexpectedly required (n)! Constraints violated (m)! The program needs more of its sizes than dynamic_shapes says:
              - n = *args[0].shape[0] must be specialized to 3 because the guards generated for it are too complex: n*m % (n - 1) == 0
                  at program.py:N in f: return x.view(x.shape[0] - 1, -1)
              - Not all values of m = *args[0].shape[1] in the specified range [0, 8000] satisfy the generated guard n*m % (n - 1) == 0
                  at program.py:N in f: return x.view(x.shape[0] - 1, -1)
            Suggested fixes:
              _m = Dim('_m', max=4000)
              n = 3
              m = 2*_m
              # or check it when the program runs: gp.export(..., guards="runtime_assert")
        """,
        other=(t(3, 8),),
    ),
    "a multiple of two dims": Case(
        """
            def f(x):
                return x.reshape(-1, 4)
        """,
        (t(4, 6),),
        {"x": (n, m)},
        """
            GP111 Specializations unexpectedly required (n, m)! The program needs more of its sizes than dynamic_shapes says:
              - n = *args[0].shape[0] must be specialized to 4 because the guards generated for it are too complex: n*m % 4 == 0
                  at program.py:N in f: return x.reshape(-1, 4)
              - m = *args[0].shape[1] must be specialized to 6 because the guards generated for it are too complex: n*m % 4 == 0
                  at program.py:N in f: return x.reshape(-1, 4)
            Suggested fixes:
              n = 4
              m = 6
              # or check it when the program runs: gp.export(..., guards="runtime_assert")
        """,
    ),
    "a sum": Case(
        """
            def f(x, y):
                return x if x.shape[0] + y.shape[0] == 10 else y
        """,
        (t(4), t(6)),
        {"x": {0: n}, "y": {0: m}},
        """
            GP111 Specializations unexpectedly required (n, m)! The program needs more of its sizes than dynamic_shapes says:
              - n = *args[0].shape[0] must be specialized to 4 because the guards generated for it are too complex: n + m == 10
                  at program.py:N in f: return x if x.shape[0] + y.shape[0] == 10 else y
              - m = *args[1].shape[0] must be specialized to 6 because the guards generated for it are too complex: n + m == 10
                  at program.py:N in f: return x if x.shape[0] + y.shape[0] == 10 else y
            Suggested fixes:
              n = 4
              m = 6
              # or check it when the program runs: gp.export(..., guards="runtime_assert")
        """,
    ),
    "a sum of three": Case(
        """
            def f(x, y, z):
                return torch.cat([x, y]) + z
        """,
        (t(3), t(4), t(7)),
        {"x": {0: n}, "y": {0: m}, "z": {0: k}},
        """
            GP111 Specializations unexpectedly required (n, m, k)! The program needs more of its sizes than dynamic_shapes says:
              - n = *args[0].shape[0] must be specialized to 3 because the guards generated for it are too complex: n + m == k
                  at program.py:N in f: return torch.cat([x, y]) + z
              - m = *args[1].shape[0] must be specialized to 4 because the guards generated for it are too complex: n + m == k
                  at program.py:N in f: return torch.cat([x, y]) + z
              - k = *args[2].shape[0] must be specialized to 7 because the guards generated for it are too complex: n + m == k
                  at program.py:N in f: return torch.cat([x, y]) + z
            Suggested fixes:
              n = 3
              m = 4
              k = 7
              # or check it when the program runs: gp.export(..., guards="runtime_assert")
        """,
    ),
    "a remainder of a sum": Case(
        """
            def f(x, y):
                return torch.cat([x, y]).reshape(-1, 2)
        """,
        (t(4), t(6)),
        {"x": {0: n}, "y": {0: m}},
        """
            GP111 Specializations unexpectedly required (n, m)! The program needs more of its sizes than dynamic_shapes says:
              - n = *args[0].shape[0] must be specialized to 4 because the guards generated for it are too complex: (n + m) % 2 == 0
                  at program.py:N in f: return torch.cat([x, y]).reshape(-1, 2)
              - m = *args[1].shape[0] must be specialized to 6 because the guards generated for it are too complex: (n + m) % 2 == 0
                  at program.py:N in f: return torch.cat([x, y]).reshape(-1, 2)
            Suggested fixes:
              n = 4
              m = 6
              # or check it when the program runs: gp.export(..., guards="runtime_assert")
        """,
    ),
    "a quotient of an even size": Case(
        """
            def f(x, y):
                return x[::2] + y
        """,
        (t(6), t(3)),
        {"x": {0: n}, "y": {0: m}},
        """
            GP111 Constraints violated (n)! The program needs more of its sizes than dynamic_shapes says:
              - Not all values of n = *args[0].shape[0] in the specified range [0, oo] satisfy the generated guard m == (n + 1)//2
                  at program.py:N in f: return x[::2] + y
            Suggested fixes:
              n = 2*m
              # or check it when the program runs: gp.export(..., guards="runtime_assert")
        """,
        other=(t(8), t(4)),
    ),
    "a quotient of an odd size": Case(
        """
            def f(x, y):
                return x[::2] + y
        """,
        (t(7), t(4)),
        {"x": {0: n}, "y": {0: m}},
        """
            GP111 Constraints violated (n, m)! The program needs more of its sizes than dynamic_shapes says:
              - Not all values of n = *args[0].shape[0] in the specified range [0, oo] satisfy the generated guard m == (n + 1)//2
                  at program.py:N in f: return x[::2] + y
              - Not all values of m = *args[1].shape[0] in the specified range [0, oo] satisfy the generated guard m == (n + 1)//2
                  at program.py:N in f: return x[::2] + y
            Suggested fixes:
              m = Dim('m', min=1)
              n = 2*m - 1
              # or check it when the program runs: gp.export(..., guards="runtime_assert")
        """,
        other=(t(9), t(5)),
    ),
    "a symbolic divisor": Case(
        """
            def f(x, y):
                return x.reshape(y.shape[0], -1)
        """,
        (t(12), t(3)),
        {"x": {0: n}, "y": {0: m}},
        """
            GP111 Specializations unexpectedly required (m)! Constraints violated (n)! The program needs more of its sizes than dynamic_shapes says:
              - Not all values of n = *args[0].shape[0] in the specified range [0, oo] satisfy the generated guard n % m == 0
                  at program.py:N in f: return x.reshape(y.shape[0], -1)
              - m = *args[1].shape[0] must be specialized to 3 because the guards generated for it are too complex: n % m == 0
                  at program.py:N in f: return x.reshape(y.shape[0], -1)
            Suggested fixes:
              _n = Dim('_n')
              m = 3
              n = 3*_n
              # or check it when the program runs: gp.export(..., guards="runtime_assert")
        """,
        other=(t(9), t(3)),
    ),
    # Derived dims
    "a derived dim that is fixed": Case(
        """
            def f(x, y):
                return x.reshape([-1]) + y
        """,
        (t(6, 2), t(12)),
        {"x": (Dim("n", min=6) - 6, 2), "y": (Dim("n", min=6),)},
        """
            GP111 Specializations unexpectedly required (n)! The program needs more of its sizes than dynamic_shapes says:
              - n - 6 = *args[0].shape[0] must be specialized to 6 because the guards generated for it are too complex
                  at program.py:N in f: return x.reshape([-1]) + y
            Suggested fixes:
              n = 12
        """,
    ),
    "a derived dim with a bound": Case(
        """
            def f(x, y):
                return x + y[1:] if y.shape[0] < 9 else x
        """,
        (t(6), t(7)),
        {"x": {0: n}, "y": {0: n + 1}},
        """
            GP111 Constraints violated (n)! The program needs more of its sizes than dynamic_shapes says:
              - Not all values of n = *args[0].shape[0] in the specified range [0, oo] satisfy the generated guard n <= 7
                  at program.py:N in f: return x + y[1:] if y.shape[0] < 9 else x
            Suggested fixes:
              n = Dim('n', max=7)
        """,
        other=(t(5), t(6)),
    ),
    "a multiple of a derived dim": Case(
        """
            def f(x):
                return x.reshape(-1, 4)
        """,
        (t(12),),
        {"x": {0: 2 * n}},
        """
            GP111 Constraints violated (n)! The program needs more of its sizes than dynamic_shapes says:
              - Not all values of n, where 2*n = *args[0].shape[0], in the specified range [0, oo] satisfy the generated guard n % 2 == 0
                  at program.py:N in f: return x.reshape(-1, 4)
            Suggested fixes:
              _n = Dim('_n')
              n = 2*_n
        """,
        other=(t(8),),
    ),
    "two derived dims": Case(
        """
            def f(x, y):
                return torch.cat([x, x]) + y
        """,
        (t(6), t(12)),
        {"x": {0: 2 * n}, "y": {0: 3 * m}},
        """
            GP111 Constraints violated (n, m)! The program needs more of its sizes than dynamic_shapes says:
              - The values of m, where 3*m = *args[1].shape[0], and n, where 2*n = *args[0].shape[0], must always be related to the values of n by 3*m = 4*n
                  at program.py:N in f: return torch.cat([x, x]) + y
            Suggested fixes:
              _n = Dim('_n')
              n = 3*_n
              m = 4*_n
        """,
        other=(t(12), t(24)),
    ),
    # Dims without a name
    "a size that is Dim.DYNAMIC": Case(
        """
            def f(x):
                return x + torch.ones(3)
        """,
        (t(3),),
        {"x": {0: Dim.DYNAMIC}},
        """
            GP111 Constraints violated (*args[0].shape[0])! The program needs more of its sizes than dynamic_shapes says:
              - You marked *args[0].shape[0] as dynamic (Dim.DYNAMIC) but your code specialized it to be a constant (3)
                  at program.py:N in f: return x + torch.ones(3)
            Suggested fixes:
              dynamic_shapes['x'][0] = 3
        """,
    ),
    "an int that is Dim.DYNAMIC": Case(
        """
            def f(x, k):
                return x * k if k == 2 else x
        """,
        (t(3), 2),
        {"x": None, "k": Dim.DYNAMIC},
        """
            GP111 Constraints violated (*args[1])! The program needs more of its sizes than dynamic_shapes says:
              - You marked *args[1] as dynamic (Dim.DYNAMIC) but your code specialized it to be a constant (2)
                  at program.py:N in f: return x * k if k == 2 else x
            Suggested fixes:
              dynamic_shapes['k'] = 2
        """,
    ),
    "a float that is Dim.DYNAMIC": Case(
        """
            def f(x, k):
                return x * k if k == 2.5 else x
        """,
        (t(3), 2.5),
        {"x": None, "k": Dim.DYNAMIC},
        """
            GP111 Constraints violated (*args[1])! The program needs more of its sizes than dynamic_shapes says:
              - You marked *args[1] as dynamic (Dim.DYNAMIC) but your code specialized it to be a constant (2.5)
                  at program.py:N in f: return x * k if k == 2.5 else x
            Suggested fixes:
              dynamic_shapes['k'] = None
        """,
    ),
    "an int that is a dim": Case(
        """
            def f(x, k):
                return x + torch.ones(k)
        """,
        (t(4), 4),
        {"x": {0: n}, "k": m},
        """
            GP111 Constraints violated (m)! The program needs more of its sizes than dynamic_shapes says:
              - The values of m = *args[1] and n = *args[0].shape[0] must always be related to the values of n by m = n
                  at program.py:N in f: return x + torch.ones(k)
            Suggested fixes:
              m = n
        """,
        other=(t(6), 6),
    ),
    "Dim.DYNAMIC tied to a dim": Case(
        """
            def f(x, y):
                return x + y, y[:4] + torch.ones(4)
        """,
        (t(6), t(6)),
        {"x": {0: n}, "y": {0: Dim.DYNAMIC}},
        """
            GP111 Constraints violated (n)! The program needs more of its sizes than dynamic_shapes says:
              - Not all values of n = *args[0].shape[0] in the specified range [0, oo] satisfy the generated guard n >= 4
                  at program.py:N in f: return x + y, y[:4] + torch.ones(4)
            Suggested fixes:
              n = Dim('n', min=4)
        """,
        other=(t(5), t(5)),
    ),
    "a spec by position": Case(
        """
            def f(x):
                return x + torch.ones(4)
        """,
        (t(4),),
        ((Dim.DYNAMIC,),),
        """
            GP111 Constraints violated (*args[0].shape[0])! The program needs more of its sizes than dynamic_shapes says:
              - You marked *args[0].shape[0] as dynamic (Dim.DYNAMIC) but your code specialized it to be a constant (4)
                  at program.py:N in f: return x + torch.ones(4)
            Suggested fixes:
              dynamic_shapes[0][0] = 4
        """,
    ),
    # Places
    "a keyword argument": Case(
        """
            def f(x, *, mask):
                return x * mask
        """,
        (t(4, 3),),
        {"x": {0: n}, "mask": {0: m}},
        """
            GP111 Constraints violated (m)! The program needs more of its sizes than dynamic_shapes says:
              - The values of m = kwargs['mask'].shape[0] and n = *args[0].shape[0] must always be related to the values of n by m = n
                  at program.py:N in f: return x * mask
            Suggested fixes:
              m = n
        """,
        other=(t(5, 3),),
        kwargs={"mask": t(4, 3)},
        other_kwargs={"mask": t(5, 3)},
    ),
    "one of **kwargs": Case(
        """
            def f(x, **more):
                return x, more["mask"] + torch.ones(4)
        """,
        (t(4, 3),),
        {"x": {0: n}, "mask": {0: Dim.DYNAMIC}},
        """
            GP111 Constraints violated (kwargs['mask'].shape[0])! The program needs more of its sizes than dynamic_shapes says:
              - You marked kwargs['mask'].shape[0] as dynamic (Dim.DYNAMIC) but your code specialized it to be a constant (4)
                  at program.py:N in f: return x, more["mask"] + torch.ones(4)
            Suggested fixes:
              dynamic_shapes['mask'][0] = 4
        """,
        other=(t(5, 3),),
        kwargs={"mask": t(4)},
        other_kwargs={"mask": t(4)},
    ),
    "one of *args": Case(
        """
            def f(*xs):
                return xs[0] + torch.ones(4), xs[1]
        """,
        (t(4), t(4)),
        {"xs": ({0: Dim.DYNAMIC}, {0: m})},
        """
            GP111 Constraints violated (*args[0].shape[0])! The program needs more of its sizes than dynamic_shapes says:
              - You marked *args[0].shape[0] as dynamic (Dim.DYNAMIC) but your code specialized it to be a constant (4)
                  at program.py:N in f: return xs[0] + torch.ones(4), xs[1]
            Suggested fixes:
              dynamic_shapes['xs'][0][0] = 4
        """,
        other=(t(4), t(5)),
    ),
    "nested containers": Case(
        """
            def f(ts):
                return ts[0]["a"] + ts[1][0], ts[1][0] * torch.ones(4)
        """,
        ([{"a": t(4)}, (t(4),)],),
        {"ts": [{"a": {0: n}}, ({0: Dim.DYNAMIC},)]},
        """
            GP111 Constraints violated (n, *args[0][1][0].shape[0])! The program needs more of its sizes than dynamic_shapes says:
              - The values of s1 = *args[0][1][0].shape[0] and n = *args[0][0]['a'].shape[0] must always be related to the values of n by s1 = n
                  at program.py:N in f: return ts[0]["a"] + ts[1][0], ts[1][0] * torch.ones(4)
              - You marked *args[0][1][0].shape[0] as dynamic (Dim.DYNAMIC) but your code specialized it to be a constant (4)
                  at program.py:N in f: return ts[0]["a"] + ts[1][0], ts[1][0] * torch.ones(4)
            Suggested fixes:
              n = 4
              dynamic_shapes['ts'][1][0][0] = 4
        """,
    ),
    "a dataclass": Case(
        """
            def f(p):
                return p.x + p.y[1:]
        """,
        (Point(t(4), t(5)),),
        {"p": [{0: n}, {0: m}]},
        """
            GP111 Constraints violated (m)! The program needs more of its sizes than dynamic_shapes says:
              - The values of m = *args[0].y.shape[0] and n = *args[0].x.shape[0] must always be related to the values of n by m = n + 1
                  at program.py:N in f: return p.x + p.y[1:]
            Suggested fixes:
              m = n + 1
        """,
        other=(Point(t(6), t(7)),),
    ),
    "a dataclass in the spec": Case(
        """
            def f(p):
                return p.x + torch.ones(4), p.y
        """,
        (Point(t(4), t(5)),),
        {"p": Point({0: Dim.DYNAMIC}, {0: m})},
        """
            GP111 Constraints violated (*args[0].x.shape[0])! The program needs more of its sizes than dynamic_shapes says:
              - You marked *args[0].x.shape[0] as dynamic (Dim.DYNAMIC) but your code specialized it to be a constant (4)
                  at program.py:N in f: return p.x + torch.ones(4), p.y
            Suggested fixes:
              dynamic_shapes['p'].x[0] = 4
        """,
        other=(Point(t(4), t(7)),),
    ),
    # Several at once
    "several at once": Case(
        """
            def f(x, y, z):
                a = x + y
                b = z.reshape(-1, 2)
                return a, b, (x + 1 if x.shape[0] < 10 else x)
        """,
        (t(6), t(6), t(4)),
        {"x": {0: n}, "y": {0: m}, "z": {0: k}},
        """
            GP111 Constraints violated (n, m, k)! The program needs more of its sizes than dynamic_shapes says:
              - The values of m = *args[1].shape[0] and n = *args[0].shape[0] must always be related to the values of n by m = n
                  at program.py:N in f: a = x + y
              - Not all values of k = *args[2].shape[0] in the specified range [0, oo] satisfy the generated guard k % 2 == 0
                  at program.py:N in f: b = z.reshape(-1, 2)
              - Not all values of n = *args[0].shape[0] in the specified range [0, oo] satisfy the generated guard n <= 9
                  at program.py:N in f: return a, b, (x + 1 if x.shape[0] < 10 else x)
            Suggested fixes:
              _k = Dim('_k')
              n = Dim('n', max=9)
              m = n
              k = 2*_k
        """,
        other=(t(9), t(9), t(8)),
    ),
    "some that are too complex": Case(
        """
            def f(w, x, y, z):
                return w.reshape([-1]) + x, y + z
        """,
        (t(3, 4), t(12), t(4), t(4)),
        {"w": (n, m), "x": (k,), "y": (Dim("dy"),), "z": (Dim("dz"),)},
        """
            GP111 Specializations unexpectedly required (n, m, k)! Constraints violated (dz)! The program needs more of its sizes than dynamic_shapes says:
              - n = *args[0].shape[0] must be specialized to 3 because the guards generated for it are too complex: n*m == k
                  at program.py:N in f: return w.reshape([-1]) + x, y + z
              - m = *args[0].shape[1] must be specialized to 4 because the guards generated for it are too complex: n*m == k
                  at program.py:N in f: return w.reshape([-1]) + x, y + z
              - k = *args[1].shape[0] must be specialized to 12 because the guards generated for it are too complex: n*m == k
                  at program.py:N in f: return w.reshape([-1]) + x, y + z
              - The values of dz = *args[3].shape[0] and dy = *args[2].shape[0] must always be related to the values of dy by dz = dy
                  at program.py:N in f: return w.reshape([-1]) + x, y + z
            Suggested fixes:
              n = 3
              m = 4
              k = 12
              dz = dy
              # or check it when the program runs: gp.export(..., guards="runtime_assert")
        """,
        other=(t(3, 4), t(12), t(5), t(5)),
    ),
    "a bound by a size that is fixed": Case(
        """
            def f(x, y):
                z = x + 1 if x.shape[0] > y.shape[0] else x
                return z, y + torch.ones(3)
        """,
        (t(5), t(3)),
        {"x": {0: n}, "y": {0: m}},
        """
            GP111 Constraints violated (n, m)! The program needs more of its sizes than dynamic_shapes says:
              - Not all values of n = *args[0].shape[0] in the specified range [0, oo] satisfy the generated guard n > m
                  at program.py:N in f: z = x + 1 if x.shape[0] > y.shape[0] else x
              - You marked *args[1].shape[0] as dynamic (m) but your code specialized it to be a constant (3)
                  at program.py:N in f: return z, y + torch.ones(3)
            Suggested fixes:
              n = Dim('n', min=4)
              m = 3
        """,
        other=(t(4), t(3)),
    ),
    "a bound by a size that must be fixed": Case(
        """
            def f(x, y):
                z = x + 1 if x.shape[0] > y.shape[0] else x
                return z, y if y.shape[0] * y.shape[0] == 9 else -y
        """,
        (t(5), t(3)),
        {"x": {0: n}, "y": {0: m}},
        """
            GP111 Specializations unexpectedly required (m)! Constraints violated (n)! The program needs more of its sizes than dynamic_shapes says:
              - Not all values of n = *args[0].shape[0] in the specified range [0, oo] satisfy the generated guard n > m
                  at program.py:N in f: z = x + 1 if x.shape[0] > y.shape[0] else x
              - m = *args[1].shape[0] must be specialized to 3 because the guards generated for it are too complex: m**2 == 9
                  at program.py:N in f: return z, y if y.shape[0] * y.shape[0] == 9 else -y
            Suggested fixes:
              n = Dim('n', min=4)
              m = 3
              # or check it when the program runs: gp.export(..., guards="runtime_assert")
        """,
        other=(t(4), t(3)),
    ),
    "an assertion about a dim with a bound": Case(
        """
            def f(x):
                torch._check(x.shape[0] < 9)
                return x + 1 if x.shape[0] > 4 else x
        """,
        (t(5),),
        {"x": {0: n}},
        """
            GP111 Constraints violated (n)! The program needs more of its sizes than dynamic_shapes says:
              - Not all values of n = *args[0].shape[0] in the specified range [0, oo] satisfy the generated guard n >= 5
                  at program.py:N in f: return x + 1 if x.shape[0] > 4 else x
              - Not all values of n = *args[0].shape[0] in the specified range [0, oo] satisfy the generated guard n <= 8
                  at program.py:N in f: torch._check(x.shape[0] < 9)
            Suggested fixes:
              n = Dim('n', min=5, max=8)
        """,
        other=(t(8),),
    ),
    "only what a dim can express": Case(
        """
            def f(x, y, z):
                return x.reshape(-1) + y, z + torch.ones(5)
        """,
        (t(3, 4), t(12), t(5)),
        {"x": (n, m), "y": (k,), "z": {0: Dim("j")}},
        """
            GP111 Constraints violated (j)! The program needs more of its sizes than dynamic_shapes says:
              - You marked *args[2].shape[0] as dynamic (j) but your code specialized it to be a constant (5)
                  at program.py:N in f: return x.reshape(-1) + y, z + torch.ones(5)
            Suggested fixes:
              j = 5
        """,
        other=(t(2, 5), t(10), t(5)),
        guards="runtime_assert",
    ),
}
