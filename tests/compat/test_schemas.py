"""Schemas by version: as recorded in this torch, and refused where a newer one differs."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

import graphport as gp
from graphport.compat import operators, schemas, versions
from graphport.compat.operators import aten
from graphport.ops.registry import RULES, overloads
from tests import matrix

pytestmark = pytest.mark.smoke

ROOT = Path(__file__).resolve().parents[2]


def run(code: str) -> Any:
    """What a new process prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_this_torch_is_as_recorded() -> None:
    """If not: read what has changed, mend the rules, and `python -m graphport.compat.schemas`."""
    found = run(
        "import json; from graphport.compat import schemas as s;"
        "print(json.dumps([list(s.INSTALLED), s.list_schemas()]))"
    )
    installed, now = tuple(found[0]), found[1]
    assert installed in schemas.TESTED, f"torch {torch.__version__} has no file of schemas"
    assert schemas.find_differences(schemas.read_schemas(installed), now) == []


def test_recording_again_changes_nothing() -> None:
    code = "from graphport.compat import schemas; print(len(schemas.record()))"
    assert run(code) == 0


def test_versions_that_are_tested() -> None:
    """The lower bounds are those of the package, the upper ones those of the constraints."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["examples"]]
    lower = {name: low for name, _, low in (text.partition(">=") for text in wanted)}
    lower["python"] = project["requires-python"].removeprefix(">=")
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {
        name.replace("-", "_"): versions.parse_release(version)[:2]
        for name, _, version in (line.partition("==") for line in lines)
    }
    for name, (oldest, newest) in versions.TESTED.items():
        assert oldest == lower[name], name
        if name not in ("python", "torch"):
            assert versions.parse_release(newest) == pinned[name], name
    torches = (schemas.print_version(v) for v in (schemas.TESTED[0], schemas.TESTED[-1]))
    assert versions.TESTED["torch"] == tuple(torches)


def test_an_operator_that_only_another_version_has_is_missing() -> None:
    names = {name for version in schemas.TESTED for name in schemas.read_schemas(version)}
    here = schemas.list_schemas()
    gone = sorted(name for name in names if name.startswith("aten::") and name not in here)
    assert gone, "every version has lost some"
    for name in gone:
        packet, _, overload = name.removeprefix("aten::").partition(".")
        if not isinstance(getattr(aten, packet), operators.Missing):
            continue
        found = getattr(getattr(aten, packet), overload or "default")
        assert not operators.is_here(found) and found not in RULES
        assert overloads(name.removeprefix("aten::")) == ()
        with pytest.raises(gp.errors.UnsupportedError, match=f"has no operator {name}"):
            found(torch.ones(2, 2))


@pytest.mark.parametrize("name", ["cholesk", "add.Tensr", "__wrapped__"])
def test_an_operator_that_no_version_has_is_a_typing_error(name: str) -> None:
    packet, _, overload = name.partition(".")
    with pytest.raises(AttributeError):
        getattr(getattr(aten, packet), overload or "default")


def test_an_overload_of_an_operator_that_is_missing() -> None:
    missing = operators.Missing("aten::cholesky")
    assert missing.out is missing.out
    assert repr(missing.out) == f"<aten::cholesky.out, which torch {torch.__version__} lacks>"
    with pytest.raises(AttributeError, match=r"no tested version of torch has aten::cholesky\.ou"):
        _ = missing.ou


NEWER = """
import json, warnings
import graphport.compat.schemas as s, graphport.compat.versions as v
# As if the newest known torch had other schemas: relu with a default, mul without out, and no tanh.
recorded = dict(s.list_schemas())
recorded["aten::relu"] = "(Tensor self, float slope=0.) -> Tensor"
recorded["aten::erf"] = "(Tensor self, bool fast=False) -> Tensor"
recorded["aten::mul.lost"] = "(Tensor self) -> Tensor"
del recorded["aten::tanh"]
s.IS_NEWER = True
v.TESTED["torch"] = ("2.0", "2.1")
read = s.read_schemas
s.read_schemas = lambda version: recorded if version == s.TESTED[-1] else read(version)
import torch, graphport as gp
from graphport.compat.operators import aten, is_here
x = torch.randn(3)
out = {"lost": not is_here(aten.mul.lost), "kept": is_here(aten.mul.Tensor)}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    out["right"] = gp.onnx.export(lambda x: torch.tanh(x) * 2, (x,), verify=True).verify().ok
    gp.export(lambda x: x + 1, (x,))
out["warnings"] = [str(w.message) for w in caught]
for name in ("relu", "erf"):
    try:
        gp.export(getattr(torch, name), (x,))
    except gp.errors.UnsupportedError as e:
        out[name] = str(e)
print(json.dumps(out))
"""


def test_a_torch_that_is_newer_than_all_that_were_tested() -> None:
    out = run(NEWER)
    assert out["lost"] and out["kept"] and out["right"]
    [warning] = out["warnings"]
    assert "the newest that is tested: graphport works, and refuses operators" in warning
    for name in ("relu", "erf"):
        assert f"has another aten.{name}.default than torch 2.15" in out[name]
        assert 'pip install "torch==2.15.*"' in out[name]


def test_programs_of_other_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written with other arguments is no call of this operator; more arguments are."""
    op = torch.ops.aten.relu.default
    other = next(v for v in schemas.TESTED if v != schemas.INSTALLED)
    for recorded, fits in {
        "(Tensor self) -> Tensor": True,
        "(Tensor input) -> Tensor": False,
        "(Tensor self, bool fast=True) -> Tensor": False,
    }.items():
        monkeypatch.setattr(schemas, "read_schemas", lambda _, r=recorded: {"aten::relu": r})
        assert schemas.is_compatible(op, other) is fits
        assert schemas.is_compatible(op, schemas.INSTALLED)


def test_every_difference_between_versions_has_been_decided() -> None:
    """And docs/versions.md has them: `python -m tests.matrix --write`."""
    rows = matrix.list_differences()
    assert set(matrix.DECISIONS) == {row[1].strip("`") for row in rows}
    page = matrix.PAGE.read_text()
    assert matrix.table(matrix.DIFFERENCES, rows) in page
    assert matrix.read_rows().keys() == set(matrix.COMBINATIONS)


def test_a_newer_version_is_described() -> None:
    assert versions.describe_untested("torch", torch.__version__) is None
    assert versions.describe_untested("numpy", "9.1.0") == (
        "numpy 9.1.0 is newer than 2.4, the newest that is tested: graphport probably works"
    )
    assert schemas.read_version("2.16.0a0+git123") == (2, 16)
    assert schemas.read_version("nonsense") == (0, 0)
