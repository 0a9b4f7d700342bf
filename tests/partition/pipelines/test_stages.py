"""Programs cut into stages: run one after the other they are the program."""

from __future__ import annotations

import copy
import io
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import graphport as gp
from graphport.errors import StageError
from graphport.partition.pipelines.cut import assign_stages
from graphport.partition.pipelines.stages import split_into_stages
from tests.partition.pipelines.models import BATCH, Counting, InOneProcess, calls, tied

close = torch.testing.assert_close


@settings(max_examples=10)
@given(st.data())
def test_any_cut_of_the_order_gives_the_same(data: st.DataObject) -> None:
    model, program, inputs = tied()
    nodes = calls(program)
    starts = data.draw(st.lists(st.integers(0, len(nodes)), max_size=4).map(sorted))
    place = {n: sum(i >= s for s in starts) for i, n in enumerate(nodes)}
    args, kwargs = inputs(data.draw(st.integers(1, 6)))
    piped = InOneProcess(program, lambda n: place[n])
    close(piped(*args, **kwargs), model(*args, **kwargs))


@settings(max_examples=10)
@given(st.data())
def test_any_assignment_that_follows_the_values_gives_the_same(data: st.DataObject) -> None:
    """Stages need not be pieces of the graph's own order."""
    model, program, inputs = tied()
    place: dict[torch.fx.Node, int] = {}
    for node in calls(program):
        least = max((place.get(n, 0) for n in node.all_input_nodes), default=0)
        place[node] = data.draw(st.integers(least, 3))
    args, kwargs = inputs(3)
    close(InOneProcess(program, place.__getitem__)(*args, **kwargs), model(*args, **kwargs))


@pytest.mark.parametrize("stages", [1, 2, 5])
def test_stages_run_on_onnx_runtime(stages: int) -> None:
    model, program, inputs = tied()
    args, kwargs = inputs(3)
    piped = InOneProcess(program, stages, "ort")
    close(piped(*args, **kwargs), model(*args, **kwargs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["torch", "ort"])
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_state_goes_on_from_run_to_run(name: str, stages: int) -> None:
    model = Counting()
    program = gp.export(copy.deepcopy(model), (torch.randn(3, 4),), dynamic_shapes=(BATCH,))
    piped = InOneProcess(program, stages, name)
    for batch in (3, 1, 5):
        x = torch.randn(batch, 4)
        close(piped(x), model(x), rtol=1e-4, atol=1e-5)
    close(program.state_dict["mean"], torch.zeros(4))


def test_state_lives_in_a_stage_if_only_that_uses_it() -> None:
    program = gp.export(Counting(), (torch.randn(3, 4),))
    parts = split_into_stages(program, *assign_stages(program, ["b"]))
    assert list(parts.front.state) == ["b_mean"]
    changed = [s.program.graph_signature.buffers_to_mutate for s in parts.stages if s.program]
    assert [list(c.values()) for c in changed] == [["calls"], []]


def test_a_stage_has_its_own_weights_only() -> None:
    _, program, _ = tied()
    parts = split_into_stages(program, *assign_stages(program, ["layers.1", "layers.2"]))
    names = [set(s.program.state_dict) for s in parts.stages if s.program]
    assert {n.split(".")[1] for n in names[1]} == {"1"}
    assert "tokens.weight" in names[0] and "tokens.weight" in names[2]
    assert [s.route.modules for s in parts.stages] == ["tokens, layers.0", "layers.1", "layers.2"]


def test_a_stage_can_be_saved_and_loaded() -> None:
    _, program, _ = tied()
    for stage in split_into_stages(program, *assign_stages(program, 3)).stages:
        file = io.BytesIO()
        assert stage.program is not None
        gp.save(stage.program, file)
        file.seek(0)
        assert str(gp.load(file)) == str(stage.program)


def test_a_stage_without_work_is_left_out() -> None:
    model = nn.Linear(2, 2)
    program = gp.export(model, (torch.ones(1, 2),))
    piped = InOneProcess(program, lambda n: 2)
    assert [s.program is None for s in piped.parts.stages] == [True, True, False]
    x = torch.randn(1, 2)
    close(piped(x), model(x))


class Several(nn.Module):
    """Changes an input, returns an input, a weight, a constant, and something data-dependent."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor, n: int) -> tuple[object, ...]:
        y = x.relu() + n
        x.mul_(2)
        found = torch.nonzero(y > n)
        return x, y, self.w, None, 3.5, found * 2, found.shape[0] + n


@pytest.mark.parametrize("stages", [1, 2, 4, 7])
def test_results_of_every_kind(stages: int) -> None:
    model = Several()
    shapes = {"x": BATCH, "n": gp.Dim("n")}
    program = gp.export(model, (torch.randn(2, 3), 4), dynamic_shapes=shapes)
    piped = InOneProcess(program, stages)
    for batch, n in ((2, 4), (5, 2)):
        x = torch.randn(batch, 3)
        a, b = x.clone(), x.clone()
        close(piped(a, n), model(b, n))
        close(a, b)


class Swapping(nn.Module):
    """Inputs and state that become one another, and the old value of something that is changed."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(3))
        self.register_buffer("other", torch.ones(3))

    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        old, kept, y = a.clone(), self.last.clone(), c - self.last
        a.copy_(b)
        b.copy_(old)
        self.last.copy_(self.other)
        self.other.copy_(c.view(3))
        c.add_(1)
        return y * 2, old, kept, a


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_values_that_change_places(stages: int) -> None:
    model = Swapping()
    mine = [torch.randn(3) for _ in range(3)]
    program = gp.export(copy.deepcopy(model), tuple(x.clone() for x in mine))
    piped, theirs = InOneProcess(program, stages), [x.clone() for x in mine]
    for _ in range(3):
        found = piped(*mine)
        close(found, model(*theirs))
        close(mine, theirs)
        assert found[3] is mine[0]
        for x in (*mine, *theirs):
            x.mul_(3)  # what the caller does with its tensors is no matter of the program's state


class Branching(nn.Module):
    def forward(self, x: Tensor, flag: Tensor) -> Tensor:
        x = x.sin()
        y = torch.cond(flag, lambda t: t.cos() + 1, lambda t: t * 2, (x,))
        return torch.cond(~flag, lambda t: t.exp(), lambda t: t - 1, (y,)) + x


@pytest.mark.parametrize("stages", [2, 5])
def test_control_flow(stages: int) -> None:
    program = gp.export(Branching(), (torch.randn(3), torch.tensor(True)))
    piped = InOneProcess(program, stages)
    for flag in (True, False):
        x = torch.randn(3)
        close(piped(x, torch.tensor(flag)), Branching()(x, torch.tensor(flag)))


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        (0, "cannot be cut into 0 stages"),
        (99, "99 stages, but the program has 1 operators"),
        (True, "neither a number, nor names, nor a function"),
        ("linear", "neither a number, nor names, nor a function"),
        (["nowhere"], "no node and no module of the program is called 'nowhere'"),
        (lambda n: -1, "the stage of linear is -1"),
        (lambda n: 1.0, "the stage of linear is 1.0"),
    ],
)
def test_cuts_that_cannot_be(stages: object, said: str) -> None:
    program = gp.export(nn.Linear(2, 2), (torch.ones(1, 2),))
    with pytest.raises(StageError, match=said):
        assign_stages(program, stages)  # type: ignore[arg-type]


def test_values_only_go_to_later_stages() -> None:
    program = gp.export(nn.Sequential(nn.ReLU(), nn.Tanh()), (torch.ones(2),))
    with pytest.raises(StageError, match="tanh is in stage 0, but takes relu of stage 1"):
        assign_stages(program, lambda n: int(n.name == "relu"))


def test_the_first_stage_may_be_named_too() -> None:
    _, program, _ = tied()
    first = calls(program)[0].name
    assert assign_stages(program, [first])[1] == assign_stages(program, [])[1] == 1
    assert assign_stages(program, [first, "layers.1"]) == assign_stages(program, ["layers.1"])


def test_stages_that_begin_in_the_wrong_order() -> None:
    _, program, _ = tied()
    with pytest.raises(StageError, match=r"begins with 'layers.1' comes before"):
        assign_stages(program, ["layers.2", "layers.1"])


def test_only_functional_programs_are_cut() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(StageError, match="runs an ExportedProgram, got Linear"):
        assign_stages(model, 2)  # type: ignore[arg-type]
    training = gp.export(model, (torch.ones(1, 2),), training=True)
    with pytest.raises(StageError, match="cannot be cut"):
        assign_stages(training, 1)


def test_stages_cost_about_the_same() -> None:
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8)))
    program = gp.export(model, (torch.ones(4, 64),))
    places, count = assign_stages(program, 4)
    assert count == 4
    assert list(places.values()) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_what_a_partitioner_has_found_is_a_cut() -> None:
    model, program, inputs = tied()
    parts = gp.partition
    devices = [parts.Device(f"d{i}", 16_000, i) for i in range(4)]
    found = parts.Partitioner().partition_graph(
        program, model, parts.PartitionerConfig(devices, parts.PartitionMode.size_based)
    )
    assert len(found.partitions) > 1
    args, kwargs = inputs(3)
    close(InOneProcess(program, found)(*args, **kwargs), model(*args, **kwargs))
    other = gp.export(nn.ReLU(), (torch.ones(2),))
    with pytest.raises(StageError, match="no partition has relu"):
        assign_stages(other, found)


def test_several_values_at_once_cross_one_by_one() -> None:
    """A graph may hand on what an operator gives as a whole; only tensors are sent."""

    class Joined(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            a, b = x.sin().chunk(2)
            return torch.cat([a, b], 1).cos()

    program = gp.export(Joined(), (torch.randn(4, 3),))
    (cat,) = [n for n in program.graph.nodes if n.name == "cat"]
    (split,) = [n for n in program.graph.nodes if n.name == "split"]
    cat.args = (split, 1)
    program.graph.eliminate_dead_code()
    x = torch.randn(4, 3)
    close(InOneProcess(program, ["cat"])(x), Joined()(x))


def test_weights_that_are_not_in_memory_are_read_by_their_stage(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    safetensors.torch.save_file(model.state_dict(), tmp_path / "model.safetensors")
    with gp.fake_mode():
        empty = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
        empty.load_state_dict(safetensors.torch.load_file(tmp_path / "model.safetensors"))
        program = gp.export(empty, (torch.randn(2, 3),))
    x = torch.randn(2, 3)
    for name in ("torch", "ort"):
        close(InOneProcess(program, 2, name)(x), model(x), rtol=1e-4, atol=1e-5)
