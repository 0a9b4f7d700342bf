"""The partitioner: a graph over several devices, and what runs it there."""

from typing import TYPE_CHECKING

from graphport.loading import on_demand

if TYPE_CHECKING:
    from graphport.distributed.pipelining import Pipeline, launch, pipeline
    from graphport.partition.config import Device, NodeLatency, PartitionerConfig, PartitionMode
    from graphport.partition.latency import (
        DeviceLoad,
        PartitionLatency,
        get_bottleneck_of_partitioned_graph,
        get_comm_latency_between,
        get_device_loads,
        get_latency_of_one_partition,
        get_latency_of_partitioned_graph,
        get_partition_to_latency_mapping,
    )
    from graphport.partition.linking import reorganize_partitions, set_parents_and_children
    from graphport.partition.partitioner import Partitioner
    from graphport.partition.pieces import (
        DAG,
        DAGNode,
        Partition,
        PartitionResult,
        get_extra_size_of,
    )
    from graphport.partition.placing import (
        get_device_partition_stats,
        get_device_to_partitions_mapping,
    )
    from graphport.partition.profiling import NodeProfile, latencies, profile
    from graphport.partition.simulation import Scaling, simulate
    from graphport.partition.timeline import picture

_PLACES = {
    "DAG": "partition.pieces",
    "DAGNode": "partition.pieces",
    "Device": "partition.config",
    "DeviceLoad": "partition.latency",
    "NodeLatency": "partition.config",
    "NodeProfile": "partition.profiling",
    "Partition": "partition.pieces",
    "PartitionLatency": "partition.latency",
    "PartitionMode": "partition.config",
    "PartitionResult": "partition.pieces",
    "Partitioner": "partition.partitioner",
    "PartitionerConfig": "partition.config",
    "Pipeline": "distributed.pipelining",
    "Scaling": "partition.simulation",
    "get_bottleneck_of_partitioned_graph": "partition.latency",
    "get_comm_latency_between": "partition.latency",
    "get_device_loads": "partition.latency",
    "get_device_partition_stats": "partition.placing",
    "get_device_to_partitions_mapping": "partition.placing",
    "get_extra_size_of": "partition.pieces",
    "get_latency_of_one_partition": "partition.latency",
    "get_latency_of_partitioned_graph": "partition.latency",
    "get_partition_to_latency_mapping": "partition.latency",
    "latencies": "partition.profiling",
    "launch": "distributed.pipelining",
    "picture": "partition.timeline",
    "pipeline": "distributed.pipelining",
    "profile": "partition.profiling",
    "reorganize_partitions": "partition.linking",
    "set_parents_and_children": "partition.linking",
    "simulate": "partition.simulation",
}
"""The file of each name."""

__all__ = [
    "DAG",
    "DAGNode",
    "Device",
    "DeviceLoad",
    "NodeLatency",
    "NodeProfile",
    "Partition",
    "PartitionLatency",
    "PartitionMode",
    "PartitionResult",
    "Partitioner",
    "PartitionerConfig",
    "Pipeline",
    "Scaling",
    "get_bottleneck_of_partitioned_graph",
    "get_comm_latency_between",
    "get_device_loads",
    "get_device_partition_stats",
    "get_device_to_partitions_mapping",
    "get_extra_size_of",
    "get_latency_of_one_partition",
    "get_latency_of_partitioned_graph",
    "get_partition_to_latency_mapping",
    "latencies",
    "launch",
    "picture",
    "pipeline",
    "profile",
    "reorganize_partitions",
    "set_parents_and_children",
    "simulate",
]

__getattr__ = on_demand(__name__, "graphport", _PLACES)
