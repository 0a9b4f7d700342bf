"""`pytest --every-export`: whatever a test captures is also saved, loaded, decomposed, recaptured.

`check` does so for the programs that go through it; this does it for every successful call of
`gp.export` in a test, whatever the test is about. What comes back must run as the program itself
does on the example inputs, or fail with the same error. Faults are collected and fail the test at
its end, so that a test which expects an error does not take one of these for it.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import graphport as gp
from graphport.errors import DataDependentError, SerializationError, SpecError
from graphport.tensors.lazy import lacks_data
from tests.helpers import assert_same, clone
from tests.program.saved import loaded, saved

OPTION = "--every-export"
APART = {"test_errors", "test_arguments", "test_bad_models", "test_process", "test_docs"}
"""Modules of tests about `gp.export` itself: its texts, its signature, what it leaves behind."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, action="store_true", help=(__doc__ or "").splitlines()[0])


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption(OPTION):
        config.pluginmanager.register(Again())


class Again:
    """Stands in front of `gp.export` for the whole session."""

    def __init__(self) -> None:
        self.original = gp.export
        self.faults: list[str] = []
        self.busy = False
        gp.export = self.export

    def pytest_unconfigure(self) -> None:
        gp.export = self.original

    @pytest.fixture(autouse=True)
    def _no_faults(self, request: pytest.FixtureRequest) -> Iterator[None]:
        self.faults.clear()
        gp.export = self.original if request.path.stem in APART else self.export
        yield
        assert not self.faults, "\n".join(self.faults)

    def export(self, mod: Any, args: Any, kwargs: Any = None, **options: Any) -> Any:
        if self.busy:
            return self.original(mod, args, kwargs, **options)
        before = _copied((args, {} if kwargs is None else kwargs))
        ep = self.original(mod, args, kwargs, **options)
        if before is None or not _has_results(ep):
            return ep
        self.busy = True
        try:
            with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._compare(ep, before, options)
        except Exception as fault:
            self.faults.append(f"{type(fault).__name__}: {fault}")
        finally:
            self.busy = False
        return ep

    def _compare(self, ep: Any, inputs: Any, options: Any) -> None:
        want = _outcome(ep, inputs)
        try:
            back = loaded(saved(ep))
        except SerializationError:
            pass  # which says why; what can be saved is the business of tests of its own
        else:
            assert str(back) == str(ep)
            assert_same(_outcome(back, inputs), want, "loaded")
        core = ep.run_decompositions()
        core.validate()
        got = _outcome(core, inputs)
        if isinstance(want, str):  # an operator that was taken apart may say it in other words
            assert isinstance(got, str), f"taken apart: {got} instead of {want}"
        else:
            assert not isinstance(got, str), f"taken apart: {got}"
            pixels = any(x.dtype is torch.uint8 for x in pytree.tree_leaves(want) if _is_tensor(x))
            near = {"rtol": 0.0, "atol": 1.0} if pixels else {}  # each weight is rounded
            assert_same(got, want, "taken apart", **near)
        if isinstance(want, str):
            return  # what fails on its example is not captured again
        kept = {k: options[k] for k in ("dynamic_shapes", "training", "guards") if k in options}
        try:
            args, kwargs = clone(inputs)
            again = self.original(ep.module(), args, kwargs, **kept)
        except (SpecError, DataDependentError):
            # The spec is written against *args or **kwargs, which have names of their own now, or
            # it knows tensors by identity. What an operator checks is not asserted besides.
            return
        again.validate()
        got = _outcome(again, inputs)
        if isinstance(want, tuple) and isinstance(got, tuple):
            # What the program had as constants are buffers of its module.
            shared = want[-1].keys() & got[-1].keys()
            want, got = ((*x[:-1], {n: x[-1][n] for n in sorted(shared)}) for x in (want, got))
        assert_same(got, want, "captured again")


def _copied(inputs: Any) -> Any:
    """The inputs before anything runs on them; None if they cannot be copied or have no numbers."""
    try:
        leaves = pytree.tree_leaves(inputs)
        if any(isinstance(x, torch.Tensor) and lacks_data(x) for x in leaves):
            return None
        copied = clone(inputs)
    except RuntimeError:  # a subclass, a layout or a depth that torch does not copy
        return None
    return copied if pytree.tree_structure(copied) == pytree.tree_structure(inputs) else None


def _has_results(ep: Any) -> bool:
    """Whether a program can be run twice, and gives the same: not what memory was by chance."""
    state = [*ep.state_dict.values(), *ep.constants.values()]
    if any(isinstance(t, torch.Tensor) and (lacks_data(t) or t.grad_fn is not None) for t in state):
        return False
    if any(type(t) not in (torch.Tensor, torch.nn.Parameter) for t in state):
        return False
    return not any("empty" in str(node.target) for node in ep.graph.nodes)


def _outcome(ep: Any, inputs: Any) -> Any:
    """Results, inputs afterwards and buffers; or the error."""
    args, kwargs = clone(inputs)
    torch.manual_seed(0)
    module = copy.deepcopy(ep.module())
    try:
        out = module(*args, **kwargs)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return pytree.tree_map(_noted, (out, args, kwargs, dict(module.named_buffers())))


def _is_tensor(x: object) -> bool:
    return isinstance(x, torch.Tensor)


def _noted(x: Any) -> Any:
    """A copy; of a tensor without numbers, what it is."""
    if not isinstance(x, torch.Tensor):
        return repr(x) if isinstance(x, float) else x  # nan is nan
    return str((x.shape, x.dtype)) if lacks_data(x) else x.detach().clone()
