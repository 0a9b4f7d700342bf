"""Tables of operators, written as names."""

from __future__ import annotations

import pytest
import torch

from graphport.ops.registry import overload_table, overloads, packets

aten = torch.ops.aten


def test_names_are_overloads() -> None:
    assert overloads("abs add.Tensor,Scalar\n    set_.default,source_Tensor") == (
        aten.abs.default,
        aten.add.Tensor,
        aten.add.Scalar,
        aten.set_.default,
        aten.set_.source_Tensor,
    )
    assert packets("abs add") == (aten.abs, aten.add)


def test_a_row_of_names_is_a_row_for_each() -> None:
    rows = {"abs neg": 1, "add.Tensor": 2}
    assert overload_table(rows) == {aten.abs.default: 1, aten.neg.default: 1, aten.add.Tensor: 2}


@pytest.mark.parametrize("name", ["absolutely", "abs.Tenser"])
def test_what_torch_does_not_have_is_refused(name: str) -> None:
    with pytest.raises(AttributeError, match=name.rpartition(".")[2]):
        overloads(f"neg {name}")


def test_a_misspelt_packet_is_refused() -> None:
    with pytest.raises(AttributeError, match="absolutely"):
        packets("abs absolutely")
