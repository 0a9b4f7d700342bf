from graphport.symbolic import Scope, eq, ge
from graphport.symbolic.bridge import from_torch, to_torch


def test_round_trip_and_guard():
    scope = Scope()
    n = scope.symbol("n", hint=8)
    sym = to_torch(n)
    assert to_torch(n) is sym and from_torch(sym) is n
    assert from_torch(sym * 2 + 1) is 2 * n + 1
    assert bool(sym == 8)
    assert scope.facts[0].cond is eq(n, 8)
    assert scope.decide(ge(n, 8)) is True
