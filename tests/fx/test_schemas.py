"""Types of arguments, and which parameters take them."""

# ruff: noqa: UP006, UP007, UP045 - types come in the old spelling as in the new

import numbers
import typing
from typing import Any, Optional, Union

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.fx import operator_schemas as reference
from torch.nn import Parameter

import graphport as gp
from graphport.fx import create_type_hint, type_matches

NONE = type(None)

TAKEN = [
    (int, int),
    (int, bool),
    (numbers.Number, int),
    (numbers.Number, float),
    (numbers.Number, bool),
    (numbers.Number, complex),
    (int, type(torch.float)),
    (int, torch.SymInt),
    (float, int),
    (float, torch.SymFloat),
    (Union[int, float], int),
    (Union[int, float], float),
    (int | None, NONE),
    (list[int], int),
    (list[int], torch.SymInt),
    (list[int], torch.Size),
    (typing.List[int], create_type_hint([int, int])),
    (typing.List[int], create_type_hint((int, int))),
    (list[float], list[int]),
    (list[Tensor], create_type_hint([Tensor, Tensor])),
    (list[Tensor], create_type_hint([Parameter, Parameter])),
    (list[Tensor], create_type_hint([Parameter, Tensor])),
    (list[Tensor], create_type_hint((Tensor, Parameter))),
    (list[Tensor], tuple[Tensor, Parameter, Tensor]),
    (list[Tensor], tuple[()]),
    (list[Tensor], list),
    (list[Optional[Tensor]], create_type_hint([Tensor, NONE])),
    (list[list[int]], create_type_hint([[int], [int, int]])),
    (Tensor, Parameter),
    (Optional[list[Tensor]], list[Tensor]),
    (Optional[list[int]], list[int]),
    (Optional[list[int]], int),
    (Union[int, None, str], int | None),
    (tuple[int, float], tuple[int, int]),
    (tuple[int, ...], tuple[int, int, int]),
    (dict[str, Tensor], dict[str, Parameter]),
    (torch.device, str),
    (torch.memory_format, torch.memory_format),
    (Any, str),
    (list[Tensor], list[Any]),
]

REFUSED = [
    (int, float),
    (int, NONE),
    (int, Tensor),
    (bool, int),
    (Tensor, int),
    (numbers.Number, str),
    (numbers.Number, Tensor),
    (Union[int, float], str),
    (list[Tensor], list[int]),
    (list[Tensor], Tensor),
    (list[int], float),
    (list[int], tuple[int, float]),
    (list[Tensor], create_type_hint([Tensor, NONE])),
    (Optional[Tensor], list[Tensor]),
    (int, int | None),
    (tuple[int, int], tuple[int]),
    (tuple[int, int], list[int]),
    (dict[str, Tensor], dict[str, int]),
    (str, typing.Callable[[], int]),
]


@pytest.mark.parametrize(("parameter", "argument"), TAKEN, ids=str)
def test_taken(parameter: Any, argument: Any) -> None:
    assert type_matches(parameter, argument)


@pytest.mark.parametrize(("parameter", "argument"), REFUSED, ids=str)
def test_refused(parameter: Any, argument: Any) -> None:
    assert not type_matches(parameter, argument)


@pytest.mark.parametrize(
    ("types", "hint"),
    [
        (int, int),
        ([], list[Any]),
        ((), tuple[Any, ...]),
        ([int, int], list[int]),
        ((int, bool), tuple[int, ...]),
        ([Parameter, Tensor], list[Tensor]),
        ([int, str], list[Any]),
        ([Tensor, NONE], list[Optional[Tensor]]),
        ([NONE, NONE], list[NONE]),
        ([None, int], list[Any]),
        ([(int, int), (int,)], list[tuple[int, ...]]),
        ([[int], [str]], list[Any]),
    ],
    ids=str,
)
def test_hint(types: Any, hint: Any) -> None:
    assert create_type_hint(types) == hint


PLAIN = st.sampled_from([int, float, bool, str, complex, Tensor, Parameter, torch.dtype])


@given(st.lists(PLAIN, max_size=4), st.booleans())
def test_hints_as_the_reference_makes_them(types: list[type], as_tuple: bool) -> None:
    of = tuple(types) if as_tuple else types
    assert create_type_hint(of) == reference.create_type_hint(of)


WIDER = {
    (numbers.Number, bool),
    (numbers.Number, complex),
    (float, int),
    (float, bool),
    (complex, int),
    (complex, float),
    (complex, bool),
    (torch.dtype, int),
    (torch.dtype, bool),
}


@given(st.one_of(PLAIN, st.just(numbers.Number)), PLAIN, st.booleans(), st.booleans())
def test_takes_what_the_reference_takes(
    parameter: Any, argument: Any, optional: bool, several: bool
) -> None:
    pair = (parameter, argument)
    if several:
        parameter, argument = list[parameter], tuple[argument, ...]
    if optional:
        parameter = Optional[parameter]
    wanted = reference.type_matches(parameter, argument)
    # What torch takes and the reference refuses; in lists also a dtype for an int.
    also = pair in WIDER or (several and pair == (int, torch.dtype))
    assert type_matches(parameter, argument) == (wanted or also)


def test_names_are_public() -> None:
    assert gp.fx.create_type_hint is create_type_hint
    assert gp.fx.type_matches is type_matches
