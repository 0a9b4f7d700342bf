"""The sections of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from graphport.report.document import Section, Table

if TYPE_CHECKING:
    from graphport.report.facts import Facts, ModuleFacts, Port, Size


def make_sections(facts: Facts, depth: int) -> list[Section]:
    """All that the model itself tells; modules down to a depth."""
    return [
        summary(facts),
        *interface(facts),
        sizes(facts),
        operators(facts.operators),
        modules(facts, depth),
    ]


def summary(facts: Facts, **more: str) -> Section:
    rows = {
        "kind": facts.kind,
        "made by": facts.origin,
        "nodes": f"{facts.nodes}, of {len(facts.operators)} operators",
        "weights": f"{facts.weights} tensors, {format_bytes(facts.weight_bytes)}",
        **more,
    }
    return Section("summary", [Table(("", ""), list(rows.items()))])


def interface(facts: Facts) -> list[Section]:
    return [
        Section("inputs", [_make_ports_table(facts.inputs)]),
        Section("outputs", [_make_ports_table(facts.outputs)]),
    ]


def _make_ports_table(ports: Sequence[Port]) -> Table | str:
    return Table(("name", "type"), [(p.name, p.type) for p in ports]) if ports else "none"


def sizes(facts: Facts) -> Section:
    blocks: list[Any] = ["none: every size is fixed"]
    if facts.sizes:
        blocks = [Table(("name", "range"), [(s.name, format_range(s)) for s in facts.sizes])]
    if facts.conditions:
        blocks.append(Table(("must hold",), [(text,) for text in facts.conditions]))
    return Section("dynamic sizes", blocks)


def format_range(size: Size) -> str:
    """`1..64`, `0..`, or what is known where nothing is said."""
    if size.least is None and size.most is None:
        return "not declared"
    least, most = ("" if x is None else str(x) for x in (size.least, size.most))
    return f"{least}..{most}"


def operators(counts: Mapping[str, int]) -> Section:
    rows = [(name, str(count)) for name, count in counts.items()]
    return Section("operators", [Table(("operator", "nodes"), rows, frozenset({1}))])


def modules(facts: Facts, depth: int) -> Section:
    shown = [p for p in facts.modules if _module_depth(p) <= depth]
    rows = [_module_row(p, facts) for p in shown]
    table = Table(("module", "class", "nodes", "weights", "share"), rows, frozenset({2, 3, 4}))
    hidden = len(facts.modules) - len(shown)
    return Section("size by module", [table, *([f"{hidden} modules are deeper"] if hidden else [])])


def _module_depth(part: ModuleFacts) -> int:
    return part.module.count(".") + 1 if part.module else 0


def _module_row(part: ModuleFacts, facts: Facts) -> tuple[str, ...]:
    share = part.bytes / facts.weight_bytes if facts.weight_bytes else 0.0
    name = part.module or "(all)"
    return name, part.kind, str(part.nodes), format_bytes(part.bytes), f"{share:.0%}"


def verification(report: Any) -> Section:
    """Of a `VerificationReport`."""
    rows = [
        (o.name, f"{o.max_abs_error:.2e}", f"{o.max_rel_error:.2e}", _format_verdict(o))
        for o in report.outputs
    ]
    columns = ("output", "largest error", "relative", "verdict")
    blocks: list[Any] = [
        *([report.weights_line] if report.weights else []),
        Table(columns, rows, frozenset({1, 2})),
        f"at {'; '.join(format_sizes(t) for t in report.sizes_tried if t.compared)}",
        *report.refusal_lines,
        *report.notes,
    ]
    where = report.first_divergence
    if where is not None:
        blocks.append(f"first differs at {where.node} in {where.module or '(all)'}: {where.source}")
    return Section("verification", blocks)


def _format_verdict(output: Any) -> str:
    note = f": {output.note}" if output.note else ""
    return f"ok{note}" if output.ok else f"WRONG at {format_sizes(output.sizes or {})}{note}"


def format_sizes(sizes: Mapping[str, int]) -> str:
    """`batch=2 seq=16`."""
    return " ".join(f"{name}={value}" for name, value in sizes.items()) or "the example"


def timings(seconds: Mapping[str, float]) -> Section:
    rows = [(name, f"{s:.2f} s") for name, s in seconds.items()]
    rows.append(("total", f"{sum(seconds.values()):.2f} s"))
    return Section("timings", [Table(("step", "time"), rows, frozenset({1}))])


def format_bytes(n: int) -> str:
    """`1.5 MB`.

    >>> format_bytes(0), format_bytes(1536), format_bytes(1_500_000)
    ('0 B', '1.5 kB', '1.5 MB')
    """
    size = float(n)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
