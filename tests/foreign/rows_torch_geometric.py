"""PyTorch Geometric: layers, networks and pools, over graphs with any number of nodes and edges."""

from __future__ import annotations

from typing import Any

import torch
import torch_geometric.nn
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import (
    add_self_loops,
    degree,
    scatter,
    softmax,
    to_dense_adj,
    to_dense_batch,
)

from tests.foreign.rows import Call, Table, integers, noise, positive

TABLE = Table()
SIZES = ((10, 24), (7, 15), (12, 40))


def graph(nodes: int, edges: int) -> tuple[Tensor, Tensor]:
    return noise(nodes, 8), integers(nodes, 2, edges)


def with_attributes(features: int) -> Any:
    return lambda nodes, edges: (*graph(nodes, edges), positive(edges, features))


def layer(name: str, *args: Any, **config: Any) -> Any:
    def build() -> nn.Module:

        return getattr(torch_geometric.nn, name)(*args, **config).eval()

    return build


for name, args, config in (
    ("GCNConv", (8, 6), {}),
    ("GATConv", (8, 6), {"heads": 2}),
    ("GATv2Conv", (8, 6), {"heads": 2}),
    ("SAGEConv", (8, 6), {}),
    ("SAGEConv", (8, 6), {"aggr": "max"}),
    ("GraphConv", (8, 6), {}),
    ("TAGConv", (8, 6), {}),
    ("ChebConv", (8, 6, 3), {}),
    ("SGConv", (8, 6), {"K": 2}),
    ("APPNP", (3, 0.1), {}),
    ("ARMAConv", (8, 6), {}),
    ("TransformerConv", (8, 6), {"heads": 2}),
    ("LEConv", (8, 6), {}),
    ("ClusterGCNConv", (8, 6), {}),
    ("GENConv", (8, 6), {}),
    (
        "PNAConv",
        (8, 6),
        {
            "aggregators": ["mean", "max", "std"],
            "scalers": ["identity", "amplification"],
            "deg": torch.tensor([0, 3, 4, 2]),
        },
    ),
    ("EdgeConv", (nn.Linear(16, 6),), {}),
    ("GINConv", (nn.Linear(8, 6),), {}),
    ("GatedGraphConv", (8, 2), {}),
    ("ResGatedGraphConv", (8, 6), {}),
    ("HypergraphConv", (8, 6), {}),
    ("SuperGATConv", (8, 6), {}),
    ("FiLMConv", (8, 6), {}),
    ("AntiSymmetricConv", (8,), {}),
    ("MFConv", (8, 6), {"max_degree": 3}),
):
    title = name + "".join(f"_{v}" for v in config.values() if isinstance(v, str))
    TABLE.add(title, layer(name, *args, **config), graph, SIZES)
for name, args, features in (
    ("NNConv", (8, 6, nn.Linear(4, 48)), 4),
    ("GINEConv", (nn.Linear(8, 6),), 8),
    ("CGConv", (8, 4), 4),
    ("GMMConv", (8, 6, 4, 3), 4),
    ("SplineConv", (8, 6, 2, 3), 2),
):
    if name != "SplineConv":  # needs a compiled package
        edge = {"edge_dim": 8} if name == "GINEConv" else {}
        TABLE.add(name, layer(name, *args, **edge), with_attributes(features), SIZES)
for name in ("GCN", "GAT", "GraphSAGE", "GIN", "PNA", "EdgeCNN"):
    extra: dict[str, Any] = {}
    if name == "PNA":
        extra = {
            "aggregators": ["mean", "min"],
            "scalers": ["identity", "attenuation"],
            "deg": torch.tensor([0, 3, 4]),
        }
    TABLE.add(
        name, layer(name, 8, 16, 2, 5, jk="cat" if name == "GCN" else None, **extra), graph, SIZES
    )


# Graphs in a batch: which graph each node belongs to is an input.


def batched(nodes: int, edges: int) -> tuple[Tensor, Tensor, Tensor]:
    return (*graph(nodes, edges), torch.arange(nodes) // 4)


def classify(pool: str, **options: Any) -> Any:
    def function(conv: Any, head: Any, x: Tensor, edges: Tensor, batch: Tensor) -> Tensor:

        h = conv(x, edges).relu()
        return head(getattr(torch_geometric.nn, pool)(h, batch, **options))

    return lambda: Call(function, layer("GCNConv", 8, 6)(), nn.Linear(6, 3)).eval()


for pool in ("global_mean_pool", "global_add_pool", "global_max_pool"):
    TABLE.add(pool, classify(pool), batched, SIZES)
    TABLE.add(f"{pool}_size", classify(pool, size=3), batched, SIZES)


def pooled(function: Any, *modules: Any) -> Any:
    return lambda: Call(function, *(make() for make in modules)).eval()


def single(nodes: int, edges: int) -> tuple[Tensor, Tensor]:
    return noise(nodes, 8), torch.arange(nodes) // 4


def dense(x: Tensor, batch: Tensor) -> Any:

    return to_dense_batch(x, batch)


def normalised(x: Tensor, edges: Tensor) -> Tensor:

    return softmax(x[edges[0]], edges[1], num_nodes=x.shape[0])


def looped(x: Tensor, edges: Tensor) -> Any:

    edges, _ = add_self_loops(edges, num_nodes=x.size(0))
    return edges, degree(edges[0], x.size(0))


def adjacency(x: Tensor, edges: Tensor) -> Tensor:

    return to_dense_adj(edges, max_num_nodes=12) @ torch.ones(12, 1)


def scattered(x: Tensor, edges: Tensor) -> Tensor:

    return scatter(x[edges[0]], edges[1], dim=0, dim_size=x.size(0), reduce="mean")


def relational(conv: Any, x: Tensor, edges: Tensor, kinds: Tensor) -> Tensor:
    torch_geometric.backend.use_segment_matmul = False  # else it asks the data which is faster
    return conv(x, edges, kinds)


def data_objects(conv: Any, x: Tensor, edges: Tensor) -> Tensor:

    data = Data(x=x, edge_index=edges)
    return conv(data.x, data.edge_index) * data.num_nodes


add = TABLE.add
add("to_dense_batch", pooled(dense), single, SIZES)
add("softmax", pooled(normalised), graph, SIZES)
add("self_loops_degree", pooled(looped), graph, SIZES)
add("to_dense_adj", pooled(adjacency), graph, SIZES, refused="GP120")
add("scatter", pooled(scattered), graph, SIZES)
add("Data", pooled(data_objects, layer("GCNConv", 8, 6)), graph, SIZES)
add("GraphNorm", layer("GraphNorm", 8), single, SIZES)
add("BatchNorm", layer("BatchNorm", 8), lambda n, e: (noise(n, 8),), SIZES)
add("PairNorm", layer("PairNorm"), lambda n, e: (noise(n, 8),), SIZES)
add("LayerNorm", layer("LayerNorm", 8), single, SIZES)
add("TopKPooling", layer("TopKPooling", 8, ratio=0.5), graph, SIZES)
add("Set2Set", layer("Set2Set", 8, 2), single, SIZES)
add(
    "AttentionalAggregation",
    lambda: layer("AttentionalAggregation", nn.Linear(8, 1))(),
    single,
    SIZES,
)
add("SoftmaxAggregation", layer("SoftmaxAggregation"), single, SIZES)
add("SortAggregation", layer("SortAggregation", 3), single, SIZES, refused="GP120")
add(
    "DenseGCNConv",
    layer("DenseGCNConv", 8, 6),
    lambda b, n: (noise(b, n, 8), positive(b, n, n)),
    SIZES,
)
add(
    "dense_diff_pool",
    pooled(lambda x, y, z: torch_geometric.nn.dense_diff_pool(x, y, z)),
    lambda b, n: (noise(b, n, 8), positive(b, n, n), noise(b, n, 4)),
    SIZES,
)
PAIRS, DISTANCES = integers(9, 2, 20), torch.ones(20)
add(
    "SchNet",
    layer(
        "SchNet",
        hidden_channels=8,
        num_filters=8,
        num_interactions=1,
        num_gaussians=5,
        interaction_graph=lambda p, b: (PAIRS, DISTANCES),
    ),
    lambda n, e: (torch.ones(9, dtype=torch.int64), noise(9, 3)),
    ((9, 0), (9, 0)),
)
add(
    "HeteroConv",
    pooled(
        lambda conv, x, y, z: conv({"a": x, "b": y}, {("a", "to", "b"): z}),
        lambda: torch_geometric.nn.HeteroConv({("a", "to", "b"): layer("SAGEConv", (8, 8), 6)()}),
    ),
    lambda n, e: (noise(n, 8), noise(n + 2, 8), integers(n, 2, e)),
    SIZES,
)
add(
    "RGCNConv",
    pooled(relational, layer("RGCNConv", 8, 6, 3)),
    lambda n, e: (*graph(n, e), integers(3, e)),
    SIZES,
)
add("GPSConv", lambda: layer("GPSConv", 8, layer("GCNConv", 8, 8)(), heads=2)(), graph, SIZES)
add("MessagePassing", lambda: own_message_passing(), graph, SIZES)
add(
    "EGNN_like",
    pooled(lambda x, e: x + scatter((x[e[0]] - x[e[1]]).tanh(), e[1], 0, x.shape[0], "sum")),
    graph,
    SIZES,
)


def own_message_passing() -> nn.Module:

    class Conv(MessagePassing):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(aggr="add")
            self.lin = nn.Linear(8, 6)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            edge_index, _ = add_self_loops(edge_index, num_nodes=x.size(0))
            row, col = edge_index
            deg = degree(col, x.size(0), dtype=x.dtype).pow(-0.5)
            return self.propagate(edge_index, x=self.lin(x), norm=deg[row] * deg[col])

        def message(self, x_j: Tensor, norm: Tensor) -> Tensor:
            return norm.view(-1, 1) * x_j

    return Conv().eval()
