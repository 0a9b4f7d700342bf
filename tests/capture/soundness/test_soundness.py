"""No silent wrong answers: random programs, at every size that their module accepts.

A program is exported once and run at a grid of sizes, within its spec and outside. Where
`.module()` accepts, the results and what is left in the inputs are those of eager; where eager
would go another way or fail, `.module()` refuses. A spec that an error rejects is repaired by the
fixes that the error suggests, and then has to hold as well.

A failure prints the program. `generate(seed)` makes it again.
"""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import pytest

import graphport as gp
from tests.capture.programs import FAILURES, Program, Shapes, generate, grid, tensors
from tests.helpers import assert_same

SIZES = 14
"""How many sizes of a program to try, and two that break its spec."""

_NO_VIEW = "view size is not compatible with input tensor's size and stride"
"""Where `view` fails a program copies, on purpose: layouts may be others when it runs."""


def check_block(seeds: range) -> Counter[str]:
    """Check the property for the programs of these numbers; count how they fared."""
    count: Counter[str] = Counter()
    with warnings.catch_warnings():
        # Eager warns of means and variances over nothing.
        warnings.simplefilter("ignore")
        for seed in seeds:
            program = generate(seed)
            try:
                count += check_program(program)
            except Exception as error:
                error.add_note(program.text)
                raise
    assert count["exported"] >= 0.5 * len(seeds), count
    return count


def check_program(program: Program) -> Counter[str]:
    spec = program.dynamic_shapes()
    try:
        ep = export(program, spec, program.guards)
    except gp.errors.ConstraintViolationError as error:
        return Counter(repaired=1) + check_repaired(program, spec, error)
    except (gp.errors.DataDependentError, gp.errors.ShapeError):
        assert program.depends_on_data
        return Counter(refused=1)
    except gp.errors.MutationError:  # a write to what is a view at some sizes and a copy at others
        return Counter(refused=1)
    return Counter(exported=1) + check_sizes(program, ep.module())


def export(program: Program, spec: Any, guards: str) -> gp.ExportedProgram:
    args = tensors(program.shapes(program.example))
    return gp.export(program.function(), args, dynamic_shapes=spec, guards=guards)


def check_repaired(
    program: Program, spec: Any, error: gp.errors.ConstraintViolationError
) -> Counter[str]:
    """The suggested fixes make a spec that export takes.

    A narrower range may bring up a question that was answered for sizes in general before, so a
    second error may follow the first; no more than that.
    """
    fixed = gp.refine_dynamic_shapes(error, spec)
    try:
        ep = export(program, fixed, "runtime_assert")
    except gp.errors.ConstraintViolationError as second:
        ep = export(program, gp.refine_dynamic_shapes(second, fixed), "runtime_assert")
    return check_sizes(program, ep.module())


def check_sizes(program: Program, module: Any) -> Counter[str]:
    """Compare with eager at the sizes of the grid."""
    count: Counter[str] = Counter()
    for shapes in (program.shapes(program.example), *grid(program, SIZES)):
        count[check_size(program, module, shapes)] += 1
    count["cases"] = count.total()
    return count


def check_size(program: Program, module: Any, shapes: Shapes) -> str:
    ours, theirs = tensors(shapes), tensors(shapes)
    try:
        want = program.function()(*theirs)
    except (*FAILURES, AssertionError) as error:
        want = error
    try:
        have = module(*ours)
    except FAILURES as error:
        # What was asserted of data need not hold of the data at hand, that of sizes does.
        if shapes == program.shapes(program.example) and not program.depends_on_data:
            raise AssertionError("the example is refused") from error
        return "failed" if isinstance(want, Exception) else "refused"
    if isinstance(want, Exception) and _NO_VIEW in str(want):
        return "copied"
    at = f"at {list(map(list, shapes))}"
    assert not isinstance(want, Exception), f"{at} eager fails, and the program does not: {want}"
    assert_same(have, want, f"{at} results differ")
    assert_same(ours, theirs, f"{at} inputs are left differently")
    return "agreed"


@pytest.mark.parametrize("block", range(4))
def test_accepted_sizes_agree_with_eager(block):
    check_block(range(block * 60, (block + 1) * 60))


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_accepted_sizes_agree_with_eager_in_20_000_cases(block):
    count = check_block(range(1000 + block * 125, 1000 + (block + 1) * 125))
    assert count["cases"] >= 1000, count


def test_a_program_without_its_checks_is_found_out():
    """The test can fail: without the checks on inputs most programs are wrong at some size."""
    wrong = 0
    for seed in range(40):
        program = generate(seed)
        try:
            ep = export(program, program.dynamic_shapes(), program.guards)
        except gp.errors.UserError:
            continue
        try:
            check_sizes(program, ep.module(check_guards=False))
        except AssertionError:
            wrong += 1
    assert wrong >= 5


def test_programs_are_the_same_every_time():
    assert generate(7).text == generate(7).text
    assert len({generate(seed).body for seed in range(50)}) == 50
