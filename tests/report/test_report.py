"""Reports of an export."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from torch import nn

import graphport as gp
from graphport.errors import InputError, MismatchError
from graphport.report import collect_facts, write
from graphport.report.document import Code, Document, Section, Table, render_html, render_markdown
from graphport.report.facts import ModuleFacts, collect_model_facts, collect_program_facts


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.down = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x[: y.shape[0]]


def exported(**options: object) -> gp.onnx.ONNXProgram:
    sizes = {"x": {0: gp.Dim("long", min=3, max=64)}, "y": {0: gp.Dim("short", min=1)}}
    return gp.onnx.export(Net(), (torch.ones(4, 4), torch.ones(3)), dynamic_shapes=sizes, **options)


BLOCK = 4 * (4 * 8 + 8 + 8 * 4 + 4)


def test_facts_of_a_model() -> None:
    facts = collect_facts(exported())
    assert [(p.name, p.type) for p in facts.inputs] == [("x", "f32[long, 4]"), ("y", "f32[short]")]
    assert {s.name: (s.least, s.most) for s in facts.sizes} == {"long": (3, 64), "short": (1, None)}
    assert facts.operators["Gemm"] == 4
    modules = {p.module: p for p in facts.modules}
    assert list(modules)[:3] == ["", "blocks", "blocks.0"]
    assert modules["blocks.1"] == ModuleFacts("blocks.1", "Block", 4, BLOCK)
    assert modules["blocks"].bytes == 2 * BLOCK
    assert 2 * BLOCK <= modules[""].bytes == facts.weight_bytes <= 2 * BLOCK + 64  # and indices
    assert modules[""].kind == "Net" and modules["blocks.0.up"].kind == "Linear"


def test_a_model_and_its_program_tell_the_same() -> None:
    program = exported()
    of_file, of_graph = (
        collect_model_facts(program.model_proto),
        collect_program_facts(program.exported_program),
    )
    assert of_file == collect_facts(program)
    assert of_file.inputs == of_graph.inputs
    assert of_file.sizes == of_graph.sizes and of_file.conditions == of_graph.conditions
    assert [p.bytes for p in of_file.modules[1:]] == [p.bytes for p in of_graph.modules[1:]]


def test_conditions_between_sizes() -> None:
    def pick(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > y.shape[0]:
            return x + 1
        return x - 1

    sizes = ({0: gp.Dim("a")}, {0: gp.Dim("b")})
    with pytest.warns(gp.errors.SizeWarning, match="a > b"):
        program = gp.onnx.export(pick, (torch.ones(4), torch.ones(2)), dynamic_shapes=sizes)
    (condition,) = collect_facts(program).conditions
    assert "a" in condition and "b" in condition


class Reader(HTMLParser):
    """The tags that are open, and the words."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.mark.parametrize("suffix", [".html", ".md", ".txt"])
def test_an_export_writes_its_report(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"net{suffix}"
    exported(verify=True, report=str(path))
    text = path.read_text()
    parts = (
        "summary",
        "inputs",
        "f32[long, 4]",
        "dynamic sizes",
        "3..64",
        "operators",
        "Gemm",
        "size by module",
        "blocks.1.down",
        "verification",
        "long=4",
        "timings",
        "capture",
        "lower",
        "verify",
    )
    assert [part for part in parts if part not in text] == []
    if suffix == ".html":
        reader = Reader()
        reader.feed(text)
        assert not reader.open and "blocks.1.down" in reader.words


def test_the_report_of_a_failure_is_written_too(tmp_path: Path) -> None:
    def add(b, self, other, alpha):
        return b.Sub(self, other)

    path = tmp_path / "wrong.md"
    with pytest.raises(MismatchError):
        gp.onnx.export(
            lambda x, y: x + y,
            (torch.ones(2), torch.ones(2)),
            verify=True,
            report=str(path),
            custom_lowerings={"aten::add.Tensor": add},
        )
    assert "| output | 2.00e+00 |" in path.read_text()
    assert "first differs at" in path.read_text()


def test_a_form_that_is_not_known(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the form of the report"):
        write(exported(), tmp_path / "net.pdf")


def test_a_report_that_cannot_be_written_is_told_first(tmp_path: Path) -> None:
    def never(x: torch.Tensor) -> torch.Tensor:
        raise AssertionError("the export has begun")

    for path, said in (("report.pdf", "is not known"), ("no/report.md", "there is no folder")):
        with pytest.raises(InputError, match=said):
            gp.onnx.export(never, (torch.ones(2),), report=tmp_path / path)


def test_text_of_the_user_is_escaped() -> None:
    table = Table(("<b>", "n"), [("a|b<c>", "1")], frozenset({1}))
    document = Document("<script>", [Section("x & y", [table, Code("1 < 2"), "words"])])
    assert "<script>" not in render_html(document) and "&lt;script&gt;" in render_html(document)
    assert "<td>a|b&lt;c&gt;</td>" in render_html(
        document
    ) and '<td class="n">1</td>' in render_html(document)
    assert "| a\\|b&lt;c&gt; | 1 |" in render_markdown(
        document
    ) and "| --- | ---: |" in render_markdown(document)
