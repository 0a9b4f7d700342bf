"""Files that other versions of torch have written."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

import graphport as gp
from graphport.compat.operators import aten, is_here
from tests.program import written

FILES = sorted(written.FOLDER.rglob("*.gpx"))


@pytest.mark.parametrize("file", FILES, ids=lambda f: f"{f.parent.name}-{f.stem}")
def test_a_program_loads_and_computes_the_same(file: Path) -> None:
    model, make_rows = written.make(file.stem)
    if file.stem == "roots" and not is_here(aten.cholesky):
        said = rf"torch \S+ has no operator aten::cholesky(.|\n)*torch \S*{file.parent.name}"
        with pytest.raises(gp.errors.SerializationError, match=said):
            gp.load(file)
        return
    program = gp.load(file).module()
    for rows in (6, 2, 11):
        x = make_rows(rows)
        eager = copy.deepcopy(model) if isinstance(model, nn.Module) else model
        torch.testing.assert_close(program(x), eager(x))
        if isinstance(model, nn.Module):
            model = eager  # the state goes on, in both


def test_every_version_has_written_files() -> None:
    from graphport.compat.schemas import TESTED, print_version

    assert {f.parent.name for f in FILES} == set(map(print_version, TESTED))
