"""Intermediate representation of an ONNX graph: values, nodes, graphs.

A `Value` knows its dtype, and its sizes where they are known, as numbers and expressions over the
program's dims. A constant knows its tensor. Values of a graph may be used in its subgraphs
(branches, loop bodies), as in ONNX.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch

from graphport.errors import WeightsError
from graphport.symbolic import Expr
from graphport.tensors.lazy import lacks_data

Size = int | Expr
Shape = tuple[Size | None, ...]
Attributes = dict[str, Any]
"""Attributes of an ONNX node by name; the schema of its operator says of which type each is."""


class Value:
    """What flows along an edge of the graph."""

    __slots__ = ("derived", "dtype", "graph", "name", "producer", "shape", "tensor", "weight")

    def __init__(
        self,
        name: str,
        dtype: torch.dtype,
        shape: Shape | None,
        graph: Graph,
        producer: Node | None = None,
        tensor: torch.Tensor | None = None,
    ) -> None:
        self.name = name
        self.dtype = dtype
        self.shape = shape
        """None if not even the rank is known."""
        self.graph = graph
        self.producer = producer
        self.tensor = tensor
        """What a constant is: known at export, and for good."""
        self.weight: Any = None
        """The torch.Tensor of a parameter or buffer: data, which may be other data when it runs."""
        self.derived: Derived | None = None
        """How the weight is made of weights of the program, if it is not one itself."""

    @property
    def data(self) -> Any:
        """The torch.Tensor of an initialiser."""
        return self.tensor if self.weight is None else self.weight

    @property
    def rank(self) -> int:
        assert self.shape is not None, f"the rank of {self.name} is not known"
        return len(self.shape)

    @property
    def sizes(self) -> tuple[Any, ...]:
        """The shape of a value whose sizes are all known, as those of the program's are."""
        assert self.shape is not None, f"the sizes of {self.name} are not known"
        return self.shape

    def __repr__(self) -> str:
        return f"{self.name}: {self.dtype}{'' if self.shape is None else list(self.shape)}"


class Complex:
    """A complex tensor: ONNX Runtime has none, so it is two values of the same sizes."""

    __slots__ = ("im", "re")

    def __init__(self, re: Value, im: Value) -> None:
        self.re = re
        self.im = im

    @property
    def dtype(self) -> torch.dtype:
        return self.re.dtype.to_complex()

    @property
    def shape(self) -> Shape | None:
        return self.re.shape

    @property
    def rank(self) -> int:
        return self.re.rank

    def __repr__(self) -> str:
        return f"({self.re!r}, {self.im!r})"


class Derived(NamedTuple):
    """A weight of the file that is computed from weights of the program when it is written."""

    make: Callable[..., Any]
    sources: tuple[Value, ...]
    seen: tuple[Any, ...] = ()
    """What the sources were when it was made."""


def source_weights(weight: Value) -> tuple[Value, ...]:
    """The weights of the program that one of the file is, or is made of."""
    return (weight,) if weight.derived is None else weight.derived.sources


def weight_versions(weights: Iterable[Value]) -> tuple[object, ...]:
    """What tells whether weights have been written to: addresses, and torch's count of writes."""
    return tuple(map(_weight_version, weights))


def _weight_version(weight: Value) -> tuple[int, int] | None:
    t = weight.data
    if lacks_data(t):
        return None
    return t.data_ptr(), 0 if t.is_inference() else t._version


def current_tensor(weight: Value) -> torch.Tensor:
    """The tensor of an initialiser; one that is made of others is made anew if they have changed.

    A program refers to the weights of the user's model, which may be trained on.
    """
    derived = weight.derived
    if derived is not None:
        seen = weight_versions(derived.sources)
        if seen != derived.seen:
            with torch.no_grad():
                made = derived.make(*(v.data for v in derived.sources))
            weight.derived = derived._replace(seen=seen)
            if weight.weight is None:
                weight.tensor = made
            else:
                weight.weight = made
    data = weight.data
    if data.dtype is not weight.dtype or tuple(data.shape) != weight.shape:
        raise WeightsError(
            f"{weight.name} was {_type_text(weight.dtype, weight.sizes)} when the model was "
            f"exported, and is {_type_text(data.dtype, data.shape)} now",
            fix="export the model as it is now",
        )
    return data


def _type_text(dtype: torch.dtype, sizes: Iterable[object]) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(sizes)}"


class Node:
    """One operator. `origin` is the node of the program that it comes from."""

    __slots__ = ("attributes", "domain", "inputs", "op", "origin", "outputs")

    def __init__(
        self,
        op: str,
        inputs: list[Value | None],
        attributes: Attributes,
        domain: str = "",
        origin: torch.fx.Node | None = None,
    ) -> None:
        self.op = op
        self.inputs = inputs
        self.attributes = attributes
        self.domain = domain
        self.origin = origin
        self.outputs: list[Value | None] = []

    def graphs(self) -> Iterator[Graph]:
        """The subgraphs of the node."""
        for a in self.attributes.values():
            if isinstance(a, Graph):
                yield a

    def __repr__(self) -> str:
        inputs = ", ".join("" if v is None else v.name for v in self.inputs)
        outputs = ", ".join("" if v is None else v.name for v in self.outputs)
        return f"{outputs} = {self.op}({inputs}, {self.attributes})"


class Graph:
    """Nodes in the order in which they run."""

    def __init__(self, name: str, parent: Graph | None = None) -> None:
        self.name = name
        self.parent = parent
        self.inputs: list[Value] = []
        self.outputs: list[Value] = []
        self.nodes: list[Node] = []
        self.initializers: dict[str, Value] = {}
        """Of the outermost graph only."""
        self.known: dict[Any, list[Value | None]] = {}
        """Outputs by operator, inputs and attributes: the same is computed once."""

    def chain(self) -> Iterator[Graph]:
        """This graph and those around it."""
        graph: Graph | None = self
        while graph is not None:
            yield graph
            graph = graph.parent

    def walk(self) -> Iterator[Node]:
        """All nodes, those of subgraphs after the node that has them."""
        for node in self.nodes:
            yield node
            for inner in node.graphs():
                yield from inner.walk()

    def count(self) -> int:
        return sum(1 for _ in self.walk())
