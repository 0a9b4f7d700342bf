"""Regions for a backend, on random graphs: what they hold, and that they can run one by one."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx import Graph, Node

from graphport.runtime.regions import Step, plan_steps


class Case(NamedTuple):
    graph: Graph
    taken: set[Node]
    ordered: set[Node]
    last: set[Node]

    def steps(self) -> list[Step]:
        return plan_steps(self.graph, self.taken.__contains__, self.ordered.__contains__, self.last)


def graph_of(rows: list[tuple[int, ...]]) -> tuple[Graph, list[Node]]:
    """A graph with one input and a call per row, which names the earlier ones that it takes."""
    graph = Graph()
    nodes = [graph.placeholder("x")]
    for row in rows:
        nodes.append(graph.call_function(operator.add, tuple(nodes[i] for i in row)))
    graph.output(nodes[-1])
    return graph, nodes[1:]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    count = draw(st.integers(1, 9))
    rows = [tuple(draw(st.lists(st.integers(0, i), max_size=3))) for i in range(count)]
    graph, calls = graph_of(rows)

    def some() -> set[Node]:
        return {n for n in calls if draw(st.booleans())}

    last = {n for n in calls if draw(st.integers(0, 9)) == 0}
    for node in calls:  # what uses one of the last is one itself
        if not last.isdisjoint(node.all_input_nodes):
            last.add(node)
    return Case(graph, some() - last, some() - last, last)


@given(cases())
@settings(deadline=None, max_examples=200)
def test_order(case: Case) -> None:
    """Each call is in one step, after what it takes; ordered and last ones are in their places."""
    found = [n for step in case.steps() for n in step.nodes]
    place = {n: i for i, n in enumerate(found)}
    calls = [n for n in case.graph.nodes if n.op == "call_function"]
    assert len(found) == len(place) and place.keys() == set(calls)
    for node in calls:
        assert all(place[n] < place[node] for n in node.all_input_nodes if n in place)
    ordered = [place[n] for n in calls if n in case.ordered]
    assert ordered == sorted(ordered)
    assert set(found[len(found) - len(case.last) :]) == case.last


@given(cases())
@settings(deadline=None, max_examples=200)
def test_regions(case: Case) -> None:
    """Regions hold all that is taken and nothing else, and no path comes back to one."""
    found = case.steps()
    assert {n for s in found if s.is_region for n in s.nodes} == case.taken
    for step in found:
        inside = set(step.nodes) if step.is_region else set()
        left: set[Node] = set()
        """What lies behind the region, outside of it."""
        for node in case.graph.nodes:
            comes = set(node.all_input_nodes)
            if node in inside:
                assert left.isdisjoint(comes)
            elif not comes.isdisjoint(inside | left):
                left.add(node)


@given(cases())
@settings(deadline=None, max_examples=200)
def test_neighbours_share_a_region(case: Case) -> None:
    """Two regions in a row would have been one."""
    if case.ordered:
        return
    found = case.steps()
    assert not any(a.is_region and b.is_region for a, b in itertools.pairwise(found))


def regions(rows: list[tuple[int, ...]], taken: Callable[[int], bool]) -> list[list[int]]:
    graph, calls = graph_of(rows)
    number = {n: i for i, n in enumerate(calls, 1)}
    found = plan_steps(graph, lambda n: taken(number[n]))
    return [[number[n] for n in s.nodes] for s in found if s.is_region]


def test_all_in_one() -> None:
    assert regions([(0,), (1,), (0, 2)], lambda i: True) == [[1, 2, 3]]


def test_apart_but_at_once() -> None:
    """Two chains that do not meet are one region."""
    assert regions([(0,), (0,), (1,), (2,)], lambda i: True) == [[1, 2, 3, 4]]


def test_something_between() -> None:
    """1 -> 2 -> 3 with 2 outside: 1 and 3 cannot be one, though 3 takes 1 itself."""
    assert regions([(0,), (1,), (1, 2)], lambda i: i != 2) == [[1], [3]]


def test_nothing_taken() -> None:
    assert regions([(0,), (1,)], lambda i: False) == []
