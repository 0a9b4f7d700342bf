"""Threads, forked processes, sessions that fail, and memory."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import resource
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import onnx
import pytest
import torch
from torch import Tensor, nn

from graphport.errors import SessionError
from graphport.runtime import OrtBackend
from tests.runtime.comparing import counts


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()


def close(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


# Threads


def at_once(call: Callable[[int], Any], count: int = 8) -> list[Any]:
    """What a function gives in threads that start together."""
    gate = threading.Barrier(count)

    def run(i: int) -> Any:
        gate.wait()
        with torch.no_grad():
            return call(i)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


@pytest.mark.parametrize("preallocate", [False, True])
def test_threads(preallocate: bool) -> None:
    """Many threads, each with inputs of its own, call one compiled model."""
    model, backend = mlp(), OrtBackend({"preallocate_output": preallocate})
    compiled = torch.compile(model, backend=backend, dynamic=True)
    compiled(torch.randn(3, 4))
    inputs = [[torch.randn(2 + i, 4) for _ in range(25)] for i in range(8)]
    results = at_once(lambda i: [compiled(x) for x in inputs[i]])
    for rows, found in zip(inputs, results, strict=True):
        close(found, [model(x) for x in rows])
    assert backend.execution_count == 201
    assert counts(backend) == [1]


def test_weights_change_while_threads_call() -> None:
    """The first call of each thread finds them changed: sessions are made again once."""
    model, backend = mlp(), OrtBackend()
    compiled = torch.compile(model, backend=backend, dynamic=True)
    x = torch.randn(3, 4)
    compiled(x)
    model[0].weight.mul_(2)
    wanted = model(x)
    for found in at_once(lambda _: compiled(x)):
        close(found, wanted)
    assert counts(backend) == [1]


def test_threads_that_train() -> None:
    model, backend = mlp(), OrtBackend()
    compiled = torch.compile(model, backend=backend, dynamic=False)
    x = torch.randn(3, 4)

    def gradients(call: Callable[..., Tensor]) -> list[Tensor]:
        with torch.enable_grad():
            return list(torch.autograd.grad(call(x).square().sum(), list(model.parameters())))

    wanted = gradients(model)
    close(gradients(compiled), wanted)
    for found in at_once(lambda _: gradients(compiled), 4):
        close(found, wanted)


# Forked processes


def _compute(compiled: Callable[..., Any], x: Tensor, pipe: Any) -> None:
    with torch.no_grad():
        pipe.send(compiled(x).tolist())


# A process that has threads is forked on purpose.
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_fork() -> None:
    """After compilation: children and the process itself compute, at the same time too."""
    model = mlp()
    compiled = torch.compile(model, backend=OrtBackend(), dynamic=True)
    compiled(torch.randn(3, 4))
    fork = multiprocessing.get_context("fork")
    children = []
    for i in range(3):
        x = torch.randn(2 + i, 4)
        here, there = fork.Pipe()
        child = fork.Process(target=_compute, args=(compiled, x, there))
        child.start()
        children.append((child, here, x))
        close(compiled(x), model(x))
    for child, here, x in children:
        assert here.poll(60), "a child does not answer"
        close(torch.tensor(here.recv()), model(x))
        child.join(60)
        assert child.exitcode == 0
    close(compiled(x), model(x))


class Rows(torch.utils.data.Dataset[Tensor]):
    """Its rows go through a compiled model, in the process that asks for them."""

    def __init__(self, compiled: Callable[..., Tensor], rows: Tensor) -> None:
        self.compiled, self.rows = compiled, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> Tensor:
        with torch.no_grad():
            return self.compiled(self.rows[i : i + 1])[0]


@pytest.mark.slow
def test_data_loader() -> None:
    model, rows = mlp(), torch.randn(12, 4)
    compiled = torch.compile(model, backend=OrtBackend(), dynamic=False)
    compiled(rows[:1])
    loader = torch.utils.data.DataLoader(
        Rows(compiled, rows), batch_size=4, num_workers=2, multiprocessing_context="fork"
    )
    close(torch.cat(list(loader)), model(rows))


# Sessions that fail


def only_three_rows(model: onnx.ModelProto) -> None:
    """Make a model fail for any other batch: it adds a constant of three rows."""
    graph = model.graph
    name = graph.output[0].name
    rows = onnx.numpy_helper.from_array(torch.zeros(3, 1).numpy(), "three_rows")
    graph.initializer.append(rows)
    for node in graph.node:
        for i, output in enumerate(node.output):
            if output == name:
                node.output[i] = "before_rows"
    graph.node.append(onnx.helper.make_node("Add", ["before_rows", "three_rows"], [name]))


def nonsense(model: onnx.ModelProto) -> None:
    model.graph.node[0].op_type = "Nonsense"


@contextlib.contextmanager
def warned_once() -> Iterator[None]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    texts = [str(w.message) for w in caught if w.category is RuntimeWarning]
    assert len(texts) == 1 and "goes on in PyTorch" in texts[0]


def test_failure_at_run_time() -> None:
    """One warning; this call and all later ones are torch's."""
    model, backend = mlp(), OrtBackend({"pre_ort_model_transforms": [only_three_rows]})
    compiled = torch.compile(model, backend=backend, dynamic=True)
    close(compiled(x := torch.randn(3, 4)), model(x))
    with warned_once():
        for rows in (5, 5, 3, 7):
            close(compiled(x := torch.randn(rows, 4)), model(x))
    assert backend.execution_count == 1


def test_failure_in_many_threads() -> None:
    model, backend = mlp(), OrtBackend({"pre_ort_model_transforms": [only_three_rows]})
    compiled = torch.compile(model, backend=backend, dynamic=True)
    compiled(torch.randn(3, 4))
    x = torch.randn(5, 4)
    with warned_once():
        for found in at_once(lambda _: compiled(x)):
            close(found, model(x))


def test_failure_leaves_inputs_alone() -> None:
    """What is written to an input is written once."""

    def fn(x: Tensor, y: Tensor) -> Tensor:
        y.add_(1)
        return x * y

    backend = OrtBackend({"pre_ort_model_transforms": [only_three_rows]})
    compiled = torch.compile(fn, backend=backend, dynamic=True)
    for rows in (3, 5):
        x, y, z = torch.randn(rows, 4), torch.zeros(rows, 4), torch.zeros(rows, 4)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            close((compiled(x, y), y), (fn(x, z), z))


def test_a_call_that_torch_refuses_as_well() -> None:
    """It raises what eager raises, and the session goes on."""
    model, backend = nn.Embedding(10, 4), OrtBackend()
    compiled = torch.compile(model, backend=backend)
    good = torch.tensor([1, 2, 3])
    compiled(good)
    with pytest.raises(IndexError, match="out of range"):
        compiled(torch.tensor([1, 20, 3]))
    close(compiled(good), model(good))
    assert backend.execution_count == 2


def test_failure_of_a_backward_graph() -> None:
    model = mlp()
    backend = OrtBackend({"pre_ort_model_transforms": [only_three_rows]})
    compiled = torch.compile(model, backend=backend, dynamic=True)
    for rows in (3, 5, 4):
        x = torch.randn(rows, 4)
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parameters = list(model.parameters())
            found = torch.autograd.grad(compiled(x).square().sum(), parameters)
            close(found, torch.autograd.grad(model(x).square().sum(), parameters))


def test_failure_when_strict() -> None:
    options = {"pre_ort_model_transforms": [only_three_rows], "strict": True}
    compiled = torch.compile(mlp(), backend=OrtBackend(options), dynamic=True)
    compiled(torch.randn(3, 4))
    for _ in range(2):
        with pytest.raises(SessionError, match="ONNX Runtime"):
            compiled(torch.randn(5, 4))


def test_model_that_is_refused() -> None:
    """ONNX Runtime does not load it: torch computes, and the report says why."""
    model, backend = mlp(), OrtBackend({"pre_ort_model_transforms": [nonsense]})
    compiled = torch.compile(model, backend=backend, dynamic=True)
    for rows in (3, 5):
        close(compiled(x := torch.randn(rows, 4)), model(x))
    assert counts(backend) == [0]
    assert "ONNX Runtime refuses a model" in backend.explain()
    assert "Nonsense" in backend.explain()


def test_model_that_is_refused_when_strict() -> None:
    backend = OrtBackend({"pre_ort_model_transforms": [nonsense], "strict": True})
    compiled = torch.compile(mlp(), backend=backend)
    with pytest.raises(Exception, match="ONNX Runtime refuses a model"):
        compiled(torch.randn(3, 4))


def test_one_of_two_models_is_refused() -> None:
    """Only what it would have computed is torch's."""

    def second(model: onnx.ModelProto) -> None:
        if any(n.op_type == "Sin" for n in model.graph.node):
            nonsense(model)

    def fn(x: Tensor) -> Tensor:
        return torch.sin(torch.bernoulli(torch.sigmoid(x)) * x)

    backend = OrtBackend({"pre_ort_model_transforms": [second]})
    compiled = torch.compile(fn, backend=backend)
    x = torch.randn(3, 4)
    torch.manual_seed(0)
    found = compiled(x)
    torch.manual_seed(0)
    close(found, fn(x))
    assert counts(backend) == [1]


# Memory


def all_freed(refs: Iterable[Callable[[], Any]]) -> bool:
    torch._dynamo.reset()
    for _ in range(3):  # what has a finaliser goes one round later
        gc.collect()
    return all(ref() is None for ref in refs)


@pytest.mark.parametrize("training", [False, True])
def test_models_are_freed(training: bool) -> None:
    """The backend does not keep models that nobody else has."""
    backend = OrtBackend.get_cached_instance_for_options()
    model = mlp()
    compiled = torch.compile(model, backend=backend, dynamic=False)
    with torch.set_grad_enabled(training):
        found = compiled(torch.randn(3, 4))
        if training:
            found.sum().backward()
    graphs = [weakref.ref(graph) for graph in backend.sessions]
    sessions = [weakref.ref(r.session) for rs in backend.sessions.values() for r in rs]
    parts = [weakref.ref(model), weakref.ref(model[0].weight), *graphs, *sessions]
    assert len(graphs) == 1 + training
    del model, compiled, found
    assert all_freed(parts)
    assert backend.sessions == {} and not backend.refused


def test_refused_graphs_are_freed() -> None:
    backend = OrtBackend({"pre_ort_model_transforms": [nonsense]})
    model = mlp()
    compiled = torch.compile(model, backend=backend)
    compiled(torch.randn(3, 4))
    ref = weakref.ref(model)
    del model, compiled
    assert all_freed([ref])


def test_calls_take_no_memory() -> None:
    """Results of 2 MB each, 200 times: what is kept would be seen."""
    compiled = torch.compile(lambda x: (x + 1, torch.sin(x)), backend=OrtBackend(), dynamic=True)
    inputs = [torch.randn(500_000), torch.randn(499_999)]
    for i in range(6):
        compiled(inputs[i % 2])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for i in range(200):
        compiled(inputs[i % 2])
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < 80_000  # kilobytes; 800,000 if all were kept
