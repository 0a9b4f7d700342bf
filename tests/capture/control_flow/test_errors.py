"""What control flow refuses, and how it says so."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import graphport as gp
from graphport.errors import ForwardError, MutationError, UnsupportedError, UserError

X = torch.ones(4)


def positive(x):
    return x.sum() > 0


def message(f, *args, kind=UserError, **options):
    with pytest.raises(kind) as error:
        gp.export(f, args or (X,), **options)
    # Lines move; what they are stays.
    return re.sub(r"\.py:\d+ in test_\w+\.<locals>\.", ".py in ", str(error.value))


def test_branches_of_different_structure():
    def f(x):
        def one(x):
            return x, x * 2

        def other(x):
            return {"a": x}

        return torch.cond(positive(x), one, other, (x,))

    assert message(f) == (
        "GP100 the branches of torch.cond return different things: "
        "('float32[4]', 'float32[4]') against {'a': 'float32[4]'}\n"
        "  true_fn   at test_errors.py in f.<locals>.one: def one(x):\n"
        "  false_fn  at test_errors.py in f.<locals>.other: def other(x):\n"
        "  at   test_errors.py in f: "
        "return torch.cond(positive(x), one, other, (x,))\n"
        "  fix  return the same structure, of the same dtype, rank and device, from both"
    )


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (lambda x: x.double(), "result 0 is float32[4] against float64[4]"),
        (lambda x: x.view(2, 2), "result 0 is float32[4] against float32[2, 2]"),
        (lambda x: x.to("meta"), "result 0 is float32[4] on cpu against float32[4] on meta"),
        (lambda x: 3, "result 0 is float32[4] against 3"),
        (lambda x: None, "result 0 is float32[4] against None"),
        (lambda x: (x, x), "float32[4] against ('float32[4]', 'float32[4]')"),
    ],
)
def test_branches_that_differ(other, said):
    text = message(lambda x: torch.cond(positive(x), lambda x: x + 1, other, (x,)))
    assert f"return different things: {said}\n" in text


def test_branches_that_return_numbers_of_different_kinds():
    text = message(lambda x: torch.cond(positive(x), lambda x: 1, lambda x: 1.5, (x,)))
    assert "result 0 is 1 against 1.5" in text
    text = message(lambda x: torch.cond(positive(x), lambda x: "a", lambda x: "b", (x,)))
    assert "result 0 is 'a' against 'b'" in text


def test_branches_that_return_objects():
    text = message(lambda x: torch.cond(positive(x), lambda x: object(), lambda x: x, (x,)))
    assert "result 0 of true_graph is a object, not a tensor or number" in text
    assert "test_errors.py" in text


@pytest.mark.parametrize(
    ("pred", "said"),
    [
        (lambda x: x > 0, "the predicate of torch.cond is a single bool, got bool[4]"),
        (lambda x: x.sum(), "the predicate of torch.cond is a single bool, got float32[]"),
        (lambda x: "yes", "the predicate of torch.cond is a str, not a bool"),
    ],
)
def test_predicates(pred, said):
    text = message(lambda x: torch.cond(pred(x), lambda x: x, lambda x: x, (x,)))
    assert said in text and "fix" in text


def test_an_exception_in_a_branch_is_the_users():
    def f(x):
        def broken(x):
            raise KeyError("lost")

        return torch.cond(positive(x), broken, lambda x: x, (x,))

    text = message(f, kind=ForwardError)
    assert "KeyError in the program: 'lost'" in text
    assert 'f.<locals>.broken: raise KeyError("lost")' in text


def test_values_that_leak_out_of_a_branch():
    def f(x):
        kept = []

        def leaks(x):
            kept.append(x * 2)
            return x

        torch.cond(positive(x), leaks, lambda x: x + 1, (x,))
        return kept[0] + 1

    text = message(f, kind=UnsupportedError)
    assert "mul was computed inside of a branch or loop, and is used outside of it" in text
    assert "f: return kept[0] + 1" in text


def test_a_shape_changed_from_inside():
    def f(x):
        y = x.view(2, 2) * 1

        def turns(x):
            y.t_()
            return x

        return torch.cond(positive(x), turns, lambda x: x + 1, (x,)), y

    text = message(f, kind=MutationError)
    assert "gives another size or shape to a tensor from outside of it" in text
    assert "y.t_()" in text


@pytest.mark.parametrize("returned", [lambda x: x, lambda x: x.view(2, 2)[0], lambda x: x[1:]])
def test_writing_to_what_may_be_an_operand(returned):
    def f(x):
        y = x * 2
        z = torch.cond(positive(x), returned, lambda x: returned(x.clone()), (y,))
        z.add_(1)
        return y

    text = message(f, kind=MutationError)
    assert "in eager the two may alias" in text and "x.clone()" in text


def test_writing_to_an_operand_and_reading_what_may_be_it():
    def f(x):
        y = x * 2
        z = torch.cond(positive(x), lambda y: y, lambda y: y * 3, (y,))
        y.add_(1)
        return z

    assert "in eager the two may alias" in message(f, kind=MutationError)


# Loops


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (lambda i, x: (i + 1, x.double()), "value 1 from float32[4] into float64[4]"),
        (lambda i, x: (i + 1, x[:2]), "value 1 from float32[4] into float32[2]"),
        (lambda i, x: (i + 1.5, x), "value 0 from int64[] into float32[]"),
        (lambda i, x: (i + 1, x.view(2, 2)), "value 1 from float32[4] into float32[2, 2]"),
        (lambda i, x: (3, x), "value 0 from int64[] into 3"),
        (lambda i, x: (i, x[x > 0]), "value 1 from float32[4] into float32[u"),
        (lambda i, x: (i + 1,), "returns 1 values, but carries 2"),
        (lambda i, x: (i + 1, x, x), "returns 3 values, but carries 2"),
    ],
)
def test_bodies_that_change_what_they_carry(body, said):
    def f(x):
        return torch.while_loop(lambda i, x: i < 3, body, (torch.tensor(0), x))

    text = message(f)
    assert "the body of torch.while_loop" in text and said in text
    assert "test_errors.py" in text


def test_a_number_that_becomes_another_kind():
    def f(x):
        return torch.while_loop(lambda i, x: i < 3, lambda i, x: (i + 0.5, x), (0, x))

    assert "turns the carried value 0 from 0 into" in message(f)


@pytest.mark.parametrize(
    ("test", "said"),
    [(lambda x: x > 0, "bool[4]"), (lambda x: x.sum(), "float32[]"), (lambda x: 3, "3")],
)
def test_conditions_that_are_no_truth(test, said):
    text = message(lambda x: torch.while_loop(test, lambda x: (x + 1,), (x,)))
    assert f"the condition of torch.while_loop returns a single bool, got {said}" in text


def test_conditions_that_write():
    def f(x):
        count = torch.zeros(())

        def test(x):
            count.add_(1)
            return count < 3

        return torch.while_loop(test, lambda x: (x + 1,), (x,))

    text = message(f, kind=MutationError)
    assert "the condition of torch.while_loop writes to a tensor from outside" in text
    assert "count.add_(1)" in text


def test_writes_to_carried_values_and_elements():
    def carried(x):
        return torch.while_loop(lambda x: x.sum() < 9, lambda x: (x.add_(1),), (x,))

    def element(x):
        return gp.map(lambda e: e.mul_(2), x)

    def scanned(x):
        return gp.scan(lambda c, e: (c.add_(e), e * 2), x.sum(), x)

    text = message(carried, kind=MutationError)
    assert "the program writes to what torch.while_loop carries (value 0)" in text
    assert "x.add_(1)" in text and "x.clone()" in text
    assert "writes to an element of map (input 0)" in message(element, kind=MutationError)
    assert "writes to what scan carries (value 0)" in message(scanned, kind=MutationError)


def test_bodies_that_write_to_what_they_are_given():
    def f(x):
        y = x * 2

        def body(i, x):
            y.add_(1)
            return i + 1, x * 2

        return torch.while_loop(lambda i, x: i < 3, body, (torch.tensor(0), y[:2]))

    text = message(f, kind=MutationError)
    assert "the body of torch.while_loop writes to a tensor that it is also given" in text
    assert "y.add_(1)" in text


def test_steps_of_map_that_write():
    def f(x):
        total = torch.zeros(())

        def step(e):
            total.add_(e)
            return e

        return gp.map(step, x), total

    text = message(f, kind=MutationError)
    assert "a step of map writes to a tensor from outside of it" in text
    assert "total.add_(e)" in text


def test_steps_that_return_numbers():
    text = message(lambda x: gp.map(lambda e: 3, x))
    assert "result 0 of a step is 3: steps return tensors" in text


def test_scans_that_change_their_carry():
    text = message(lambda x: gp.scan(lambda c, e: (c.double(), e), x.sum(), x))
    assert "the body of scan turns the carried value 0 from float32[] into float64[]" in text
    text = message(lambda x: gp.scan(lambda c, e: ((c, c), e), x.sum(), x))
    assert "gp.scan carries float32[], but its function returns" in text


def test_maps_over_what_is_no_tensor():
    assert "goes over tensors with at least 1 dims, got 3" in message(
        lambda x: gp.map(torch.sin, 3)
    )
    assert "got one of 0 dims" in message(lambda x: gp.map(torch.sin, x.sum()))


def test_assigning_a_buffer_in_a_branch():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            def true_fn(x):
                self.count = self.count + 1
                return x

            return torch.cond(x.sum() > 0, true_fn, lambda x: x + 1, (x,))

    text = message(Model(), kind=UnsupportedError)
    assert "was computed inside of a branch or loop, and is used outside of it" in text
