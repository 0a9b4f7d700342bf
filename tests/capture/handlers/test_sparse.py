"""Sparse matrices times dense ones, from the state and made by the program; the rest is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphport as gp
from graphport.errors import InputError, UnsupportedError
from tests.onnx.helpers import check_onnx

# CSR tensors are in beta, and invariants of sparse tensors unchecked: so torch warns.
pytestmark = pytest.mark.filterwarnings("ignore:.*[Ss]parse:UserWarning")

N = gp.Dim("n")
DENSE = torch.tensor([[0.0, 2, 0, 1], [0, 0, 0, 0], [3, 0, -1, 0]])
X, OTHERS = torch.randn(4, 3), [(torch.randn(4, 7),), (torch.randn(4, 1),), (torch.randn(4, 0),)]
PLACES = torch.tensor([[0, 0, 2, 2, 0], [1, 3, 0, 2, 1]])
VALUES = torch.tensor([2.0, 1, 3, -1, 5])


class Holds(nn.Module):
    def __init__(self, matrix: Tensor, run: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.register_buffer("matrix", matrix)
        self.run = run

    def forward(self, x: Tensor) -> Any:
        return self.run(self.matrix, x)  # type: ignore[arg-type]


LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "coo": DENSE.to_sparse,
    "csr": DENSE.to_sparse_csr,
    "uncoalesced": lambda: torch.sparse_coo_tensor(PLACES, VALUES, (3, 4)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_sparse_buffer(layout: str) -> None:
    def run(a: Tensor, x: Tensor) -> Any:
        return torch.sparse.mm(a, x), a @ x, torch.mv(a, x.sum(1)), a.matmul(x.sin())

    model = Holds(LAYOUTS[layout](), run)
    # Not the module itself, of which torch cannot copy one with a CSR tensor.
    check_onnx(lambda x: model(x), (X,), dynamic_shapes=({1: N},), others=OTHERS)
    ep = gp.export(model, (X,))
    torch.testing.assert_close(ep.module()(X), model(X))


def propagate(edges: Tensor, weights: Tensor, x: Tensor) -> Any:
    """As networks on graphs do: how many nodes and edges there are is open."""
    n = x.shape[0]
    adjacency = torch.sparse_coo_tensor(edges, weights, (n, n)).coalesce()
    return torch.sparse.mm(adjacency, x), adjacency.t() @ x[:, 0], adjacency.to_dense()


def propagate_rows(starts: Tensor, columns: Tensor, weights: Tensor, x: Tensor) -> Any:
    matrix = torch.sparse_csr_tensor(starts, columns, weights, size=(starts.shape[0] - 1, len(x)))
    return matrix @ x


def test_a_matrix_that_the_program_makes() -> None:
    edge = gp.Dim("edge")
    more = torch.tensor([[0, 1, 1, 4], [1, 1, 0, 2]])
    check_onnx(
        propagate,
        (PLACES, VALUES, X),
        dynamic_shapes=({1: edge}, {0: edge}, {0: N}),
        others=[(more, torch.randn(4), torch.randn(5, 3))],
    )
    check_onnx(
        propagate_rows,
        (torch.tensor([0, 2, 2, 4]), torch.tensor([1, 3, 0, 2]), VALUES[:4], X),
        dynamic_shapes=(None, {0: edge}, {0: edge}, {0: N}),
    )


REFUSED = {
    "another operator": (lambda a, x: torch.sparse.softmax(a, 0), "'matrix'(.|\n)*to_dense"),
    "a sum": (lambda a, x: torch.sparse.sum(a) + x, "'matrix'(.|\n)*to_dense"),
    "made by data": (lambda a, x: x.to_sparse() @ x, "sparse"),
    "its values": (
        lambda a, x: torch.sparse_coo_tensor(PLACES, VALUES, (4, 4)).coalesce().values(),
        r"\.values of a sparse tensor",
    ),
    "a function of it": (
        lambda a, x: torch.sparse_coo_tensor(PLACES, VALUES, (4, 4)) + x,
        "sparse",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    run, said = REFUSED[name]
    with pytest.raises((UnsupportedError, TypeError), match=said) as caught:
        gp.export(Holds(LAYOUTS["coo"](), run), (torch.randn(4, 4),))
    assert "test_sparse.py" in str(caught.value)


def test_inputs() -> None:
    with pytest.raises(InputError, match=r"args\[0\] has layout torch.sparse_coo(.|\n)*to_dense"):
        gp.export(lambda a, x: a @ x, (LAYOUTS["coo"](), X))
