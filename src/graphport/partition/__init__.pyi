"""The public names, each with its place: for type checkers, and for `__init__.py`."""

from graphport.partition.config import Device as Device
from graphport.partition.config import NodeLatency as NodeLatency
from graphport.partition.config import PartitionerConfig as PartitionerConfig
from graphport.partition.config import PartitionMode as PartitionMode
from graphport.partition.costs import DeviceLoad as DeviceLoad
from graphport.partition.costs import NodeProfile as NodeProfile
from graphport.partition.costs import PartitionLatency as PartitionLatency
from graphport.partition.costs import (
    get_bottleneck_of_partitioned_graph as get_bottleneck_of_partitioned_graph,
)
from graphport.partition.costs import get_comm_latency_between as get_comm_latency_between
from graphport.partition.costs import get_device_loads as get_device_loads
from graphport.partition.costs import get_latency_of_one_partition as get_latency_of_one_partition
from graphport.partition.costs import (
    get_latency_of_partitioned_graph as get_latency_of_partitioned_graph,
)
from graphport.partition.costs import (
    get_partition_to_latency_mapping as get_partition_to_latency_mapping,
)
from graphport.partition.costs import latencies as latencies
from graphport.partition.costs import profile as profile
from graphport.partition.partition import DAG as DAG
from graphport.partition.partition import DAGNode as DAGNode
from graphport.partition.partition import Partition as Partition
from graphport.partition.partition import PartitionResult as PartitionResult
from graphport.partition.partition import get_extra_size_of as get_extra_size_of
from graphport.partition.partitioner import Partitioner as Partitioner
from graphport.partition.pipelines.pipeline import Pipeline as Pipeline
from graphport.partition.pipelines.pipeline import launch as launch
from graphport.partition.pipelines.pipeline import pipeline as pipeline
from graphport.partition.place import get_device_partition_stats as get_device_partition_stats
from graphport.partition.place import (
    get_device_to_partitions_mapping as get_device_to_partitions_mapping,
)
from graphport.partition.place import reorganize_partitions as reorganize_partitions
from graphport.partition.place import set_parents_and_children as set_parents_and_children
from graphport.partition.timeline import Scaling as Scaling
from graphport.partition.timeline import picture as picture
from graphport.partition.timeline import simulate as simulate
