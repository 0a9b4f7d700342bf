"""Questions that only data can answer: the error in full, in the names of the code that asks.

Every `torch._check(...)` that an error offers is pasted in front of the line that failed. With it the
export succeeds, and the program agrees with eager, or refuses the data that eager refuses.
"""
# ruff: noqa: E501  messages stand here as they are shown

from __future__ import annotations

import dataclasses
import re
import textwrap
from typing import Any

import pytest
import torch

import graphport as gp
from graphport import Dim
from graphport.errors import DataDependentError, ForwardError, UserError
from tests.capture.errors import golden, text_of
from tests.capture.programs import compiled
from tests.helpers import compare


def t(*shape: int) -> torch.Tensor:
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape)


def i(*values: int) -> torch.Tensor:
    return torch.tensor(values if len(values) > 1 else values[0])


@dataclasses.dataclass(frozen=True)
class Case:
    source: str
    """Of the program `f`."""
    args: tuple[Any, ...]
    text: str
    dynamic_shapes: Any = None

    @property
    def code(self) -> str:
        return textwrap.dedent(self.source).lstrip("\n")


CASES: dict[str, Case] = {
    # Branches on numbers
    "a variable": Case(
        """
            def f(x):
                n = x.item()
                return x + 1 if n > 3 else x
        """,
        (i(5),),
        """
            GP120 Could not guard on data-dependent expression n >= 4: the program branches on it, and it depends on the data of a tensor
              n comes from program.py:N in f: n = x.item()
              at   program.py:N in f: return x + 1 if n > 3 else x
              fix  torch._check(n >= 4)
              fix  torch._check(n <= 3)
        """,
    ),
    "a variable that equals": Case(
        """
            def f(x):
                n = x.item()
                return x + 1 if n == 3 else x
        """,
        (i(5),),
        """
            GP120 Could not guard on data-dependent expression n == 3: the program branches on it, and it depends on the data of a tensor
              n comes from program.py:N in f: n = x.item()
              at   program.py:N in f: return x + 1 if n == 3 else x
              fix  torch._check(n == 3)
              fix  torch._check(n != 3)
        """,
    ),
    "an expression": Case(
        """
            def f(x):
                return x + 1 if x.max().item() * 2 > 3 else x
        """,
        (i(5, 2),),
        """
            GP120 Could not guard on data-dependent expression x.max().item() >= 2: the program branches on it, and it depends on the data of a tensor
              at   program.py:N in f: return x + 1 if x.max().item() * 2 > 3 else x
              fix  n = x.max().item(); torch._check(n >= 2), and use n from there on
              fix  n = x.max().item(); torch._check(n <= 1), and use n from there on
        """,
    ),
    "an expression beside a variable": Case(
        """
            def f(x, y):
                n = y + 1
                return n if x.item() > 3 else y
        """,
        (i(5), t(2)),
        """
            GP120 Could not guard on data-dependent expression x.item() >= 4: the program branches on it, and it depends on the data of a tensor
              at   program.py:N in f: return n if x.item() > 3 else y
              fix  m = x.item(); torch._check(m >= 4), and use m from there on
              fix  m = x.item(); torch._check(m <= 3), and use m from there on
        """,
    ),
    "a remainder": Case(
        """
            def f(x):
                n = x.item()
                return x if n % 2 == 0 else -x
        """,
        (i(4),),
        """
            GP120 Could not guard on data-dependent expression n % 2 == 0: the program branches on it, and it depends on the data of a tensor
              n comes from program.py:N in f: n = x.item()
              at   program.py:N in f: return x if n % 2 == 0 else -x
              fix  torch._check(n % 2 == 0)
              fix  torch._check(n % 2 != 0)
        """,
    ),
    "a sum of two": Case(
        """
            def f(x, y):
                a = x.item()
                b = y.item()
                return x if a + b > 4 else y
        """,
        (i(2), i(3)),
        """
            GP120 Could not guard on data-dependent expression a + b >= 5: the program branches on it, and it depends on the data of a tensor
              a comes from program.py:N in f: a = x.item()
              b comes from program.py:N in f: b = y.item()
              at   program.py:N in f: return x if a + b > 4 else y
              fix  torch._check(a + b >= 5)
              fix  torch._check(a + b <= 4)
        """,
    ),
    "two without names": Case(
        """
            def f(x, y):
                return x if x.item() < y.item() else y
        """,
        (i(2), i(3)),
        """
            GP120 Could not guard on data-dependent expression x.item() < y.item(): the program branches on it, and it depends on the data of a tensor
              at   program.py:N in f: return x if x.item() < y.item() else y
              fix  n = x.item(); m = y.item(); torch._check(n < m), and use n, m from there on
              fix  n = x.item(); m = y.item(); torch._check(n >= m), and use n, m from there on
        """,
    ),
    "a variable that changes": Case(
        """
            def f(x, y):
                n = x.item()
                n = n - 1
                return y + 1 if n > 0 else y
        """,
        (i(2), t(3)),
        """
            GP120 Could not guard on data-dependent expression n >= 1: the program branches on it, and it depends on the data of a tensor
              n comes from program.py:N in f: n = x.item()
              at   program.py:N in f: return y + 1 if n > 0 else y
              fix  torch._check(n >= 1)
              fix  torch._check(n <= 0)
        """,
    ),
    "a float": Case(
        """
            def f(x):
                scale = x.max().item()
                return x / scale if scale > 1.0 else x
        """,
        (t(3),),
        """
            GP120 Could not guard on data-dependent expression scale > 1.0: the program branches on it, and it depends on the data of a tensor
              scale comes from program.py:N in f: scale = x.max().item()
              at   program.py:N in f: return x / scale if scale > 1.0 else x
              fix  torch._check(scale > 1.0)
              fix  torch._check(torch.sym_not(scale > 1.0))
        """,
    ),
    "a float without a name": Case(
        """
            def f(x):
                return x if x.max().item() > 0 else -x
        """,
        (t(3),),
        """
            GP120 Could not guard on data-dependent expression x.max().item() > 0.0: the program branches on it, and it depends on the data of a tensor
              at   program.py:N in f: return x if x.max().item() > 0 else -x
              fix  n = x.max().item(); torch._check(n > 0.0), and use n from there on
              fix  n = x.max().item(); torch._check(torch.sym_not(n > 0.0)), and use n from there on
        """,
    ),
    "a bool": Case(
        """
            def f(x):
                ok = (x > 0).all().item()
                return x if ok else -x
        """,
        (t(3),),
        """
            GP120 Could not guard on data-dependent expression ok: the program branches on it, and it depends on the data of a tensor
              ok comes from program.py:N in f: ok = (x > 0).all().item()
              at   program.py:N in f: return x if ok else -x
              fix  torch._check(ok)
              fix  torch._check(torch.sym_not(ok))
        """,
    ),
    "a bool without a name": Case(
        """
            def f(x):
                return x if (x > 0).all().item() else -x
        """,
        (t(3),),
        """
            GP120 Could not guard on data-dependent expression (x > 0).all().item(): the program branches on it, and it depends on the data of a tensor
              at   program.py:N in f: return x if (x > 0).all().item() else -x
              fix  n = (x > 0).all().item(); torch._check(n), and use n from there on
              fix  n = (x > 0).all().item(); torch._check(torch.sym_not(n)), and use n from there on
        """,
    ),
    "a conjunction": Case(
        """
            def f(x, y):
                a, b = x.item(), y.item()
                return x if torch.sym_min(a, b) > 3 else y
        """,
        (i(5), i(7)),
        """
            GP120 Could not guard on data-dependent expression min(a, b) >= 4: the program branches on it, and it depends on the data of a tensor
              a comes from program.py:N in f: a, b = x.item(), y.item()
              b comes from program.py:N in f: a, b = x.item(), y.item()
              at   program.py:N in f: return x if torch.sym_min(a, b) > 3 else y
              fix  torch._check(min(a, b) >= 4)
              fix  torch._check(min(a, b) <= 3)
        """,
    ),
    "both of two": Case(
        """
            def f(x, y):
                a, b = x.item(), y.item()
                return x if (a > 3) & (b > 4) else y
        """,
        (i(5), i(7)),
        """
            GP120 Could not guard on data-dependent expression a >= 4 and b >= 5: the program branches on it, and it depends on the data of a tensor
              a comes from program.py:N in f: a, b = x.item(), y.item()
              b comes from program.py:N in f: a, b = x.item(), y.item()
              at   program.py:N in f: return x if (a > 3) & (b > 4) else y
              fix  torch._check((a >= 4) & (b >= 5))
              fix  torch._check((a <= 3) | (b <= 4))
        """,
    ),
    "an input size": Case(
        """
            def f(x, y):
                index = y.item()
                return x if index < x.shape[0] else -x
        """,
        (t(3), i(2)),
        """
            GP120 Could not guard on data-dependent expression x.shape[0] > index: the program branches on it, and it depends on the data of a tensor
              index comes from program.py:N in f: index = y.item()
              at   program.py:N in f: return x if index < x.shape[0] else -x
              fix  torch._check(x.shape[0] > index)
              fix  torch._check(x.shape[0] <= index)
        """,
        dynamic_shapes={"x": {0: Dim("s")}, "y": None},
    ),
    "an input size with a name": Case(
        """
            def f(x, y):
                index = y.item()
                rows = x.shape[0]
                return x if index < rows else -x
        """,
        (t(3), i(2)),
        """
            GP120 Could not guard on data-dependent expression rows > index: the program branches on it, and it depends on the data of a tensor
              index comes from program.py:N in f: index = y.item()
              at   program.py:N in f: return x if index < rows else -x
              fix  torch._check(rows > index)
              fix  torch._check(rows <= index)
        """,
        dynamic_shapes={"x": {0: Dim("s")}, "y": None},
    ),
    "a while loop": Case(
        """
            def f(x, y):
                n = y.item()
                while n > 0:
                    return x + 1
                return x
        """,
        (t(3), i(2)),
        """
            GP120 Could not guard on data-dependent expression n >= 1: the program branches on it, and it depends on the data of a tensor
              n comes from program.py:N in f: n = y.item()
              at   program.py:N in f: while n > 0:
              fix  torch._check(n >= 1)
              fix  torch._check(n <= 0)
        """,
    ),
    # Values that something holds
    "elements of a list": Case(
        """
            def f(x):
                a, b = x.tolist()
                return x if a < b else -x
        """,
        (i(2, 3),),
        """
            GP120 Could not guard on data-dependent expression a < b: the program branches on it, and it depends on the data of a tensor
              a comes from program.py:N in f: a, b = x.tolist()
              b comes from program.py:N in f: a, b = x.tolist()
              at   program.py:N in f: return x if a < b else -x
              fix  torch._check(a < b)
              fix  torch._check(a >= b)
        """,
    ),
    "an element of a list": Case(
        """
            def f(x):
                sizes = x.tolist()
                return x if sizes[0] < 3 else -x
        """,
        (i(2, 3),),
        """
            GP120 Could not guard on data-dependent expression sizes[0] <= 2: the program branches on it, and it depends on the data of a tensor
              sizes[0] comes from program.py:N in f: sizes = x.tolist()
              at   program.py:N in f: return x if sizes[0] < 3 else -x
              fix  torch._check(sizes[0] <= 2)
              fix  torch._check(sizes[0] >= 3)
        """,
    ),
    "an element without a name": Case(
        """
            def f(x):
                return x if x.tolist()[0] < 3 else -x
        """,
        (i(2, 3),),
        """
            GP120 Could not guard on data-dependent expression x.tolist()[0] <= 2: the program branches on it, and it depends on the data of a tensor
              at   program.py:N in f: return x if x.tolist()[0] < 3 else -x
              fix  n = x.tolist()[0]; torch._check(n <= 2), and use n from there on
              fix  n = x.tolist()[0]; torch._check(n >= 3), and use n from there on
        """,
    ),
    "an entry of a dict": Case(
        """
            def f(x):
                found = {"count": x.sum().item()}
                return x if found["count"] < 3 else -x
        """,
        (i(2, 3),),
        """
            GP120 Could not guard on data-dependent expression found['count'] <= 2: the program branches on it, and it depends on the data of a tensor
              found['count'] comes from program.py:N in f: found = {"count": x.sum().item()}
              at   program.py:N in f: return x if found["count"] < 3 else -x
              fix  torch._check(found['count'] <= 2)
              fix  torch._check(found['count'] >= 3)
        """,
    ),
    "an attribute": Case(
        """
            class Model(torch.nn.Module):
                def forward(self, x):
                    self.count = x.sum().item()
                    return x if self.count > 3 else -x


            f = Model()
        """,
        (i(1, 2, 3),),
        """
            GP120 Could not guard on data-dependent expression self.count >= 4: the program branches on it, and it depends on the data of a tensor
              self.count comes from program.py:N in Model.forward: self.count = x.sum().item()
              at   program.py:N in Model.forward: return x if self.count > 3 else -x
              fix  torch._check(self.count >= 4)
              fix  torch._check(self.count <= 3)
        """,
    ),
    "an argument of a helper": Case(
        """
            def helper(n):
                return 1 if n > 3 else 2


            def f(x):
                return x + helper(x.item())
        """,
        (i(5),),
        """
            GP120 Could not guard on data-dependent expression n >= 4: the program branches on it, and it depends on the data of a tensor
              n comes from program.py:N in f: return x + helper(x.item())
              at   program.py:N in helper: return 1 if n > 3 else 2
              fix  torch._check(n >= 4)
              fix  torch._check(n <= 3)
        """,
    ),
    # Sizes
    "the size of a result": Case(
        """
            def f(x):
                y = x.nonzero()
                return x.cos() if y.shape[0] > 2 else x.sin()
        """,
        (t(3),),
        """
            GP120 Could not guard on data-dependent expression y.shape[0] >= 3: the program branches on it, and it depends on the data of a tensor
              y.shape[0] comes from program.py:N in f: y = x.nonzero()
              at   program.py:N in f: return x.cos() if y.shape[0] > 2 else x.sin()
              fix  torch._check(y.shape[0] >= 3)
              fix  torch._check(y.shape[0] <= 2)
        """,
    ),
    "the size of a result, in a variable": Case(
        """
            def f(x):
                count = x.nonzero().shape[0]
                return x.cos() if count > 2 else x.sin()
        """,
        (t(3),),
        """
            GP120 Could not guard on data-dependent expression count >= 3: the program branches on it, and it depends on the data of a tensor
              count comes from program.py:N in f: count = x.nonzero().shape[0]
              at   program.py:N in f: return x.cos() if count > 2 else x.sin()
              fix  torch._check(count >= 3)
              fix  torch._check(count <= 2)
        """,
    ),
    "the size of a result without a name": Case(
        """
            def f(x):
                return x.cos() if x.nonzero().shape[0] > 2 else x.sin()
        """,
        (t(3),),
        """
            GP120 Could not guard on data-dependent expression x.nonzero().shape[0] >= 3: the program branches on it, and it depends on the data of a tensor
              at   program.py:N in f: return x.cos() if x.nonzero().shape[0] > 2 else x.sin()
              fix  n = x.nonzero().shape[0]; torch._check(n >= 3), and use n from there on
              fix  n = x.nonzero().shape[0]; torch._check(n <= 2), and use n from there on
        """,
    ),
    "a mask": Case(
        """
            def f(x):
                y = x[x > 1]
                return y if y.shape[0] != 0 else x
        """,
        (t(3),),
        """
            GP120 Could not guard on data-dependent expression y.shape[0] != 0: the program branches on it, and it depends on the data of a tensor
              y.shape[0] comes from program.py:N in f: y = x[x > 1]
              at   program.py:N in f: return y if y.shape[0] != 0 else x
              fix  torch._check(y.shape[0] != 0)
              fix  torch._check(y.shape[0] == 0)
        """,
    ),
    "a selection": Case(
        """
            def f(x):
                y = x.masked_select(x > 1)
                return x if y.numel() < 2 else y
        """,
        (t(3),),
        """
            GP120 Could not guard on data-dependent expression y.shape[0] <= 1: the program branches on it, and it depends on the data of a tensor
              y.shape[0] comes from program.py:N in f: y = x.masked_select(x > 1)
              at   program.py:N in f: return x if y.numel() < 2 else y
              fix  torch._check(y.shape[0] <= 1)
              fix  torch._check(y.shape[0] >= 2)
        """,
    ),
    "unique values and an input size": Case(
        """
            def f(x):
                return x if torch.unique(x).shape[0] == x.shape[0] else x + 1
        """,
        (t(3),),
        """
            GP120 Could not guard on data-dependent expression x.shape[0] == torch.unique(x).shape[0]: the program branches on it, and it depends on the data of a tensor
              at   program.py:N in f: return x if torch.unique(x).shape[0] == x.shape[0] else x + 1
              fix  n = torch.unique(x).shape[0]; torch._check(x.shape[0] == n), and use n from there on
              fix  n = torch.unique(x).shape[0]; torch._check(x.shape[0] != n), and use n from there on
        """,
        dynamic_shapes={"x": {0: Dim("s")}},
    ),
    "a size computed from one": Case(
        """
            def f(x, y):
                z = torch.cat([x[x > 1], y])
                return z if z.shape[0] > 5 else -z
        """,
        (t(4), t(4)),
        """
            GP120 Could not guard on data-dependent expression z.shape[0] >= 6: the program branches on it, and it depends on the data of a tensor
              z.shape[0] comes from program.py:N in f: z = torch.cat([x[x > 1], y])
              at   program.py:N in f: return z if z.shape[0] > 5 else -z
              fix  torch._check(z.shape[0] >= 6)
              fix  torch._check(z.shape[0] <= 5)
        """,
    ),
    # Values that Python needs
    "a loop": Case(
        """
            def f(x, y):
                for k in range(y.item()):
                    if k > 5:
                        break
                    x = x + k
                return x
        """,
        (t(3), i(2)),
        """
            GP120 Could not guard on data-dependent expression y.item(): Python needs its value, and it depends on the data of a tensor
              at   program.py:N in f: for k in range(y.item()):
              fix  keep it a tensor, or torch._check what the program needs to know of it
        """,
    ),
    "an index of a list": Case(
        """
            def f(x, y):
                k = y.item()
                return [x, x + 1][k]
        """,
        (t(3), i(1)),
        """
            GP120 Could not guard on data-dependent expression k: Python needs its value, and it depends on the data of a tensor
              k comes from program.py:N in f: k = y.item()
              at   program.py:N in f: return [x, x + 1][k]
              fix  keep it a tensor, or torch._check what the program needs to know of it
        """,
    ),
    "the length of a result": Case(
        """
            def f(x):
                y = x[x > 1]
                return y if len(y) else x
        """,
        (t(3),),
        """
            GP120 Could not guard on data-dependent expression y.shape[0] != 0: the program branches on it, and it depends on the data of a tensor
              y.shape[0] comes from program.py:N in f: y = x[x > 1]
              at   program.py:N in f: return y if len(y) else x
              fix  torch._check(y.shape[0] != 0)
              fix  torch._check(y.shape[0] == 0)
        """,
    ),
    "an int": Case(
        """
            def f(x, y):
                k = int(y)
                return x if k > 1 else -x
        """,
        (t(3), i(2)),
        """
            GP120 Could not guard on data-dependent expression k >= 2: the program branches on it, and it depends on the data of a tensor
              k comes from program.py:N in f: k = int(y)
              at   program.py:N in f: return x if k > 1 else -x
              fix  torch._check(k >= 2)
              fix  torch._check(k <= 1)
        """,
    ),
    "a tensor": Case(
        """
            def f(x):
                return x if (x > 0).all() else -x
        """,
        (t(3),),
        """
            GP120 Could not guard on data-dependent expression: the truth value of a tensor is not known while the program is captured, so Python cannot branch on it
              at   program.py:N in f: return x if (x > 0).all() else -x
              fix  torch.cond(pred, true_fn, false_fn, (operands,)) keeps both branches
              fix  torch.where(pred, a, b) chooses element by element
        """,
    ),
    # Assertions that do not hold
    "an assertion that the example fails": Case(
        """
            def f(x):
                assert x.shape[0] == 4
                return x
        """,
        (t(3),),
        """
            GP150 AssertionError in the program
              at   program.py:N in f: assert x.shape[0] == 4
        """,
        dynamic_shapes={"x": {0: Dim("s")}},
    ),
    "a check that the example fails": Case(
        """
            def f(x):
                torch._check(x.shape[0] == 4, lambda: "four rows")
                return x
        """,
        (t(3),),
        """
            GP150 RuntimeError in the program: four rows
              at   program.py:N in f: torch._check(x.shape[0] == 4, lambda: "four rows")
        """,
        dynamic_shapes={"x": {0: Dim("s")}},
    ),
    "checks that contradict each other": Case(
        """
            def f(x):
                n = x.item()
                torch._check(n > 4, lambda: "more than four")
                torch._check(n < 3, lambda: "less than three")
                return x
        """,
        (i(5),),
        """
            GP150 RuntimeError in the program: less than three
              at   program.py:N in f: torch._check(n < 3, lambda: "less than three")
        """,
    ),
}


def failing(case: Case) -> UserError:
    f = compiled(case.code, "program.py")["f"]
    with pytest.raises((DataDependentError, ForwardError)) as caught:
        gp.export(f, case.args, dynamic_shapes=case.dynamic_shapes)
    return caught.value


@pytest.mark.parametrize("name", CASES)
def test_text(name: str) -> None:
    assert text_of(failing(CASES[name])) == golden(CASES[name].text)


def pasted(code: str, line: int, fix: str) -> str:
    """The program with a fix in front of a line; what the fix names anew is used from there on."""
    statement, anew, _ = fix.partition(", and use ")
    lines = code.splitlines()
    before, failed, after = lines[: line - 1], lines[line - 1], lines[line:]
    if anew:
        for definition in statement.split("; ")[:-1]:
            name, _, value = definition.partition(" = ")
            assert value in failed, f"{value} is not in the line that failed"
            failed = failed.replace(value, name)
    indent = re.match(" *", failed).group()
    return "\n".join([*before, indent + statement, failed, *after, ""])


@pytest.mark.parametrize("name", CASES)
def test_every_check_settles_the_question(name: str) -> None:
    case = CASES[name]
    error = failing(case)
    checks = [fix for fix in error.fix if re.search(r"torch\._check\(", fix)]
    outcomes = [settles(case, pasted(case.code, error.where.line, fix)) for fix in checks]
    asks = "the program branches on it" in str(error)
    assert asks == bool(checks)
    assert outcomes.count(True) == asks, "of an answer and its opposite, one is that of the example"


def settles(case: Case, code: str) -> bool:
    """Whether the check holds of the example; the program does what eager does, either way."""
    f = compiled(code, "pasted.py")["f"]
    ep = gp.export(f, case.args, dynamic_shapes=case.dynamic_shapes)
    ep.validate()
    try:
        f(*case.args)
    except RuntimeError:
        with pytest.raises(RuntimeError):
            ep.module()(*case.args)
        return False
    compare(ep, f, (case.args, {}))
    return True


@pytest.mark.parametrize("name", CASES)
def test_a_draft_takes_the_answer_of_the_example(name: str) -> None:
    case = CASES[name]
    error = failing(case)
    f = compiled(case.code, "program.py")["f"]
    if isinstance(error, ForwardError):
        with pytest.raises(type(error.__cause__)):
            gp.draft_export(f, case.args, dynamic_shapes=case.dynamic_shapes)
        return
    ep, report = gp.draft_export(f, case.args, dynamic_shapes=case.dynamic_shapes)
    assert str(report.assumptions[0]) == str(error)
    compare(ep, f, (case.args, {}))


def test_the_texts_are_distinct() -> None:
    assert len({golden(case.text) for case in CASES.values()}) == len(CASES)


def test_a_chain_of_questions_is_settled_one_by_one() -> None:
    case = Case("def f(x):\n    n = x.item()\n    return x if 2 < n < 9 else -x\n", (i(5),), "")
    first = failing(case)
    assert first.fix == ["torch._check(n >= 3)", "torch._check(n <= 2)"]
    case = dataclasses.replace(case, source=pasted(case.code, first.where.line, first.fix[0]))
    second = failing(case)
    assert second.fix == ["torch._check(n <= 8)", "torch._check(n >= 9)"]
    assert settles(case, pasted(case.code, second.where.line, second.fix[0]))


def test_a_question_is_answered_by_the_other_side_of_a_check() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        a, b = x.item(), y.item()
        torch._check(b > a + 1)
        return x if a + 1 < b else y

    compare(gp.export(f, (i(2), i(5))), f, ((i(2), i(9)), {}))


def test_an_assertion_within_a_function_of_torch_is_recorded_once() -> None:
    """What torch's meta kernels do to describe its result is no part of the program."""
    window = torch.hann_window(16)

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.istft(x, 16, 4, window=window)

    ep = gp.export(f, (torch.randn(9, 8, dtype=torch.complex64),))
    asserted = [n for n in ep.graph.nodes if n.target is torch.ops.aten._assert_async.msg]
    assert len(asserted) == 1
    assert not [n for n in ep.graph.nodes if n.kwargs.get("device") == torch.device("meta")]
