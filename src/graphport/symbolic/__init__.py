"""Symbolic integers, floats and bools: expressions, ranges, facts, decisions.

`expr` is the algebra, `ranges` are intervals, `scope` holds what is known and answers questions,
`bridge` presents expressions to PyTorch as `torch.SymInt` and is the only part that knows torch.
The bridge is not imported here.
"""

from graphport.symbolic import expr
from graphport.symbolic.expr import *  # noqa: F403  (its `__all__` is the list)
from graphport.symbolic.ranges import Range
from graphport.symbolic.scope import Fact, NotKnown, Scope

__all__ = ["Fact", "NotKnown", "Range", "Scope"]
__all__ += expr.__all__
