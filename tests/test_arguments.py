"""Every public function, given wrong arguments one by one: an error of ours that names each.

A call that is right stands here for each, and is made; then each of its arguments is replaced by
every value of a table. What is accepted is listed: everything else has to be refused.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import graphport as gp
from graphport.arguments import FLAG, TEXT, check_arguments, check_fields, integer, several
from graphport.errors import ExportError, InputError, InternalError
from graphport.partition import Device, NodeLatency, PartitionerConfig, PartitionMode


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.lin(x)) + self.shift


@dataclasses.dataclass
class Record:
    field: Any


X, NET = torch.ones(3, 4), Net().eval()
DEVICES = [Device("a", 1 << 20, 0), Device("b", 1 << 20, 1)]
SHAPES = ({0: gp.Dim("rows")},)
EP = gp.export(NET, (X,), dynamic_shapes=SHAPES)
TRACED = torch.fx.symbolic_trace(NET)
gp.fx.get_size_of_all_nodes(TRACED, (X,))
LATENCIES = {n: NodeLatency(1.0, 1.0) for n in TRACED.graph.nodes}
FOUND = gp.partition.Partitioner().partition_graph(TRACED, NET, PartitionerConfig(DEVICES))
MADE = gp.onnx.export(NET, (X,))
NODE = next(n for n in TRACED.graph.nodes if n.op == "call_module")
PARTITION = FOUND.partitions[0]
try:
    gp.export(lambda x: x.reshape(3, 4), (X,), dynamic_shapes=SHAPES)
except gp.errors.ConstraintViolationError as error:
    VIOLATION = error


class Call(NamedTuple):
    """A public function, and arguments that it takes."""

    fn: Callable[..., Any]
    arguments: dict[str, Any]
    runs: bool = True
    """Whether it is called with what it accepts: not if that starts processes."""


def replace_in_a_copy(fx_module: Any, *args: Any, **kwargs: Any) -> None:
    """It changes the module it is given: the next call has to find the same one."""
    gp.fx.replace_target_nodes_with(copy.deepcopy(fx_module), *args, **kwargs)


def config(**changes: Any) -> Any:
    return gp.partition.Partitioner().partition_graph(TRACED, NET, PartitionerConfig(**changes))


def named(fn: Callable[..., Any], **arguments: Any) -> Call:
    return Call(fn, arguments)


def save(**arguments: Any) -> None:
    MADE.save(**arguments)


OPTIONS: dict[str, Any] = {
    "input_names": None,
    "output_names": None,
    "opset": None,
    "target": "onnx",
    "optimize": True,
    "verify": False,
    "custom_lowerings": None,
    "report": None,
    "module_functions": (),
}
PARTS = FOUND.partitions
RATE = {"transfer_rate_bytes_per_sec": 1.0}
SPREAD = {"timeout": 30.0, "start_timeout": 30.0, "micro_batches": 1, "batch": None}
GM = {"fx_module": TRACED}
CALLS: dict[str, Call] = {
    # Capture
    "gp.export": named(
        gp.export,
        mod=NET,
        args=(X,),
        kwargs={},
        dynamic_shapes=None,
        strict=False,
        training=False,
        decompose=None,
        preserve_module_call_signature=(),
        guards="error",
    ),
    "gp.draft_export": named(gp.draft_export, mod=NET, args=(X,), kwargs={}, dynamic_shapes=None),
    "gp.Dim": named(gp.Dim, name="n", min=1, max=5),
    "gp.Dim.at": named(gp.Dim("n").at, value=3),
    "gp.Dim.AUTO": named(gp.Dim.AUTO, min=1, max=5),
    "gp.dims": named(lambda name, **limits: gp.dims(name, **limits), name="n", min=1, max=5),
    "gp.AdditionalInputs": named(gp.AdditionalInputs),
    "gp.AdditionalInputs.add": named(gp.AdditionalInputs().add, args=(X,), kwargs={}),
    "gp.AdditionalInputs.dynamic_shapes": named(
        gp.AdditionalInputs().dynamic_shapes, mod=NET, args=(X,), kwargs={}
    ),
    "gp.AdditionalInputs.verify": named(gp.AdditionalInputs().verify, ep=EP),
    "gp.ShapesCollection": named(gp.ShapesCollection),
    "gp.ShapesCollection.dynamic_shapes": named(
        gp.ShapesCollection().dynamic_shapes, mod=NET, args=(X,), kwargs={}
    ),
    "gp.refine_dynamic_shapes": named(
        gp.refine_dynamic_shapes, error=VIOLATION, dynamic_shapes=SHAPES
    ),
    "gp.register_dataclass": Call(
        gp.register_dataclass, {"cls": Record, "serialized_type_name": None}, runs=False
    ),
    "gp.fake_mode": named(gp.fake_mode),
    "gp.map": named(gp.map, f=lambda x: x + 1, xs=X),
    "gp.scan": named(
        gp.scan, combine_fn=lambda c, x: (c + x, c), init=X[0], xs=X, dim=0, reverse=False
    ),
    # Programs
    "gp.ExportedProgram.module": named(EP.module, check_guards=True),
    "gp.ExportedProgram.tensor": named(EP.tensor, name="shift"),
    "gp.ExportedProgram.run_decompositions": named(
        EP.run_decompositions, table=None, preserve_ops=()
    ),
    "gp.default_decompositions": named(gp.default_decompositions),
    "gp.unflatten": named(gp.unflatten, program=EP),
    "gp.from_torch": named(gp.from_torch, program=EP.to_torch()),
    "gp.save": named(gp.save, program=EP, file="other.gpx"),
    "gp.load": named(gp.load, file="program.gpx", verify=True),
    # ONNX
    "gp.onnx.export": named(
        gp.onnx.export,
        model=NET,
        args=(X,),
        kwargs={},
        dynamic_shapes=None,
        dynamic_axes=None,
        f=None,
        external_data="auto",
        strict=False,
        guards="error",
        **OPTIONS,
    ),
    "gp.onnx.ExportOptions": named(
        gp.onnx.ExportOptions, dynamic_shapes=None, share_weights=False, **OPTIONS
    ),
    "gp.onnx.ExportOptions.of": named(gp.onnx.ExportOptions.of, given={}),
    "gp.onnx.lowering": named(gp.onnx.lowering, name="aten::add.Tensor"),
    "gp.onnx.supported_ops": named(gp.onnx.supported_ops),
    "gp.onnx.ONNXProgram.save": named(
        save,
        path="model.onnx",
        external_data="auto",
        state_dict=None,
        include_initializers=True,
        keep_initializers_as_inputs=False,
    ),
    "gp.onnx.ONNXProgram.rename_axes": named(MADE.rename_axes, names={}),
    "gp.onnx.ONNXProgram.verify": named(MADE.verify, args=(X,), kwargs={}, rtol=1e-3, atol=1e-3),
    "gp.onnx.ONNXProgram.adapt_torch_outputs_to_onnx": named(
        MADE.adapt_torch_outputs_to_onnx, out=X
    ),
    # The backend of torch.compile
    "gp.ort.OrtBackend": named(gp.ort.OrtBackend, options=None),
    "gp.ort.OrtBackend.get_cached_instance_for_options": named(
        gp.ort.OrtBackend.get_cached_instance_for_options, options=None
    ),
    "gp.ort.OrtBackendOptions": named(
        gp.ort.OrtBackendOptions,
        preferred_execution_providers=None,
        infer_execution_providers=True,
        default_execution_providers=None,
        preallocate_output=False,
        use_aot_autograd=True,
        export_options=None,
        ort_session_options=None,
        pre_ort_model_transforms=None,
        strict=False,
    ),
    # Graphs
    "gp.fx.AnnotateTypesWithSchema": named(
        gp.fx.AnnotateTypesWithSchema,
        module=TRACED,
        annotate_functionals=True,
        annotate_modules=True,
        annotate_get_attrs=True,
    ),
    "gp.fx.NormalizeOperators": named(gp.fx.NormalizeOperators, module=TRACED),
    "gp.fx.NormalizeArgs": named(
        gp.fx.NormalizeArgs, module=TRACED, normalize_to_only_use_kwargs=True
    ),
    "gp.fx.RewritingTracer": named(gp.fx.RewritingTracer().trace, root=NET, concrete_args=None),
    "gp.fx.ShapeProp": named(gp.fx.ShapeProp, gm=TRACED),
    "gp.fx.annotate_getitem_nodes": named(gp.fx.annotate_getitem_nodes, graph=TRACED.graph),
    "gp.fx.fuse": named(gp.fx.fuse, model=NET, inplace=False, no_trace=False),
    "gp.fx.gen_mkl_autotuner": named(gp.fx.gen_mkl_autotuner, example_inputs=X, iters=1, warmup=1),
    "gp.fx.get_size_of_all_nodes": named(gp.fx.get_size_of_all_nodes, args=(X,), **GM),
    "gp.fx.lift_lowering_attrs_to_nodes": named(gp.fx.lift_lowering_attrs_to_nodes, **GM),
    "gp.fx.merge_matmul": named(gp.fx.merge_matmul, model=NET),
    "gp.fx.meta_trace": named(gp.fx.meta_trace, root=NET, meta_args={"x": X}, concrete_args=None),
    "gp.fx.normalize_function": named(
        gp.fx.normalize_function,
        target=torch.add,
        args=(X, X),
        kwargs={},
        arg_types=None,
        kwarg_types=None,
        normalize_to_only_use_kwargs=True,
    ),
    "gp.fx.normalize_module": named(
        gp.fx.normalize_module,
        root=NET,
        target="lin",
        args=(X,),
        kwargs={},
        normalize_to_only_use_kwargs=True,
    ),
    "gp.fx.optimize_for_inference": named(
        gp.fx.optimize_for_inference, model=NET, pass_config=None, tracer=torch.fx.Tracer
    ),
    "gp.fx.remove_dropout": named(gp.fx.remove_dropout, model=NET),
    "gp.fx.replace_target_nodes_with": named(
        replace_in_a_copy,
        fx_module=TRACED,
        old_op="call_function",
        old_target=torch.relu,
        new_op="call_function",
        new_target=torch.sigmoid,
    ),
    "gp.fx.split_module": named(
        gp.fx.split_module, gm=TRACED, root=NET, callback=lambda n: 0, qualname_map=None
    ),
    "gp.fx.to_folder": named(gp.fx.to_folder, gm=TRACED, folder="package", module_name="Fx"),
    "gp.fx.create_type_hint": named(gp.fx.create_type_hint, x=[1]),
    "gp.fx.type_matches": named(gp.fx.type_matches, signature_type=int, argument_type=int),
    "gp.fx.use_mkl_length": Call(gp.fx.use_mkl_length, {"graph": None}, runs=False),
    "gp.fx.validate": named(gp.fx.validate, before="s0+1", after="1+s0", assume=()),
    # Devices
    "gp.partition.Device": named(Device, name="d", available_mem_bytes=5, logical_id=0),
    "gp.partition.NodeLatency": named(NodeLatency, mem_latency_sec=1.0, computer_latency_sec=1.0),
    "gp.partition.PartitionerConfig": named(
        config,
        devices=DEVICES,
        mode=PartitionMode.size_based,
        **RATE,
        node_to_latency_mapping={},
        node_to_partition_mapping={},
        partition_to_logical_device_mapping={},
        saturate_host=False,
        objective="bottleneck",
    ),
    "gp.partition.Partitioner": named(
        gp.partition.Partitioner().partition_graph,
        torch_module=NET,
        partitioner_config=PartitionerConfig(DEVICES),
        **GM,
    ),
    "gp.partition.Partition": named(gp.partition.Partition, partition_id=1, nodes=[NODE]),
    "gp.partition.Partition.add_node": named(gp.partition.Partition(1).add_node, node=NODE),
    "gp.partition.Partition.remove_node": named(gp.partition.Partition(1).remove_node, node=NODE),
    "gp.partition.get_extra_size_of": named(
        gp.partition.get_extra_size_of, node=NODE, nodes={NODE}
    ),
    "gp.partition.get_bottleneck_of_partitioned_graph": named(
        gp.partition.get_bottleneck_of_partitioned_graph,
        partitions=PARTS,
        node_to_latency_mapping=LATENCIES,
        **RATE,
    ),
    "gp.partition.get_device_loads": named(
        gp.partition.get_device_loads, partitions=PARTS, node_to_latency_mapping=LATENCIES, **RATE
    ),
    "gp.partition.get_comm_latency_between": named(
        gp.partition.get_comm_latency_between,
        parent_partition=PARTITION,
        child_partition=PARTITION,
        **RATE,
    ),
    "gp.partition.get_latency_of_one_partition": named(
        gp.partition.get_latency_of_one_partition,
        partition=PARTITION,
        node_to_latency_mapping=LATENCIES,
    ),
    "gp.partition.get_partition_to_latency_mapping": named(
        gp.partition.get_partition_to_latency_mapping,
        partitions=PARTS,
        node_to_latency_mapping=LATENCIES,
    ),
    "gp.partition.get_latency_of_partitioned_graph": named(
        gp.partition.get_latency_of_partitioned_graph,
        partitions=PARTS,
        **RATE,
        partition_to_latency_mapping=gp.partition.get_partition_to_latency_mapping(
            PARTS, LATENCIES
        ),
    ),
    "gp.partition.get_device_partition_stats": named(
        gp.partition.get_device_partition_stats, partitions=PARTS, devices=DEVICES
    ),
    "gp.partition.get_device_to_partitions_mapping": named(
        gp.partition.get_device_to_partitions_mapping, partitions=PARTS, devices=DEVICES
    ),
    "gp.partition.set_parents_and_children": named(
        gp.partition.set_parents_and_children, partitions=PARTS
    ),
    "gp.partition.reorganize_partitions": named(
        gp.partition.reorganize_partitions, partitions=PARTS
    ),
    "gp.partition.latencies": named(gp.partition.latencies, profiled={}),
    "gp.partition.profile": Call(
        lambda gm, **times: gp.partition.profile(gm, X, **times),
        {"gm": TRACED, "runs": 1, "warmup": 1},
        runs=False,
    ),
    "gp.partition.picture": named(gp.partition.picture, result=FOUND, path=None, micro_batches=3),
    "gp.partition.PartitionResult.svg": named(FOUND.svg, path=None, micro_batches=3),
    "gp.partition.simulate": named(
        gp.partition.simulate,
        node_to_latency_mapping=LATENCIES,
        devices=(1, 2),
        memory_bytes=None,
        **RATE,
        **GM,
    ),
    "gp.partition.launch": Call(
        gp.partition.launch,
        {
            "program": EP,
            "processes": 2,
            "stages": None,
            "runtime": "torch",
            "threads": None,
            "imports": (),
            **SPREAD,
        },
        runs=False,
    ),
    "gp.partition.pipeline": Call(
        gp.partition.pipeline,
        {"program": EP, "stages": None, "runtime": "torch", **SPREAD},
        runs=False,
    ),
}


RECORDS = (
    "gp.DraftProgram",
    "gp.ExportGraphSignature",
    "gp.ExportedProgram",
    "gp.GraphSignature",
    "gp.InputKind",
    "gp.InputSpec",
    "gp.ModuleCallEntry",
    "gp.ModuleCallSignature",
    "gp.OutputKind",
    "gp.OutputSpec",
    "gp.UnflattenedModule",
    "gp.errors",
    "gp.fx",
    "gp.onnx",
    "gp.ort",
    "gp.partition",
    "gp.onnx.ONNXProgram",
    "gp.fx.TensorMetadata",
    "gp.fx.size_bytes",
    "gp.partition.DAG",
    "gp.partition.DAGNode",
    "gp.partition.DeviceLoad",
    "gp.partition.NodeProfile",
    "gp.partition.PartitionLatency",
    "gp.partition.PartitionMode",
    "gp.partition.PartitionResult",
    "gp.partition.Pipeline",
    "gp.partition.Scaling",
)
"""Modules, enumerations, and what graphport makes by itself to be read."""

VALUES: dict[str, Any] = {
    "None": None,
    "5": 5,
    "-1": -1,
    "0": 0,
    "x": "x",
    "object": object(),
    "[]": [],
    "{}": {},
    "nan": math.nan,
    "huge": 10**30,
    "tensor": torch.ones(2),
    "module": nn.ReLU(),
    "class": int,
    "(1,)": (1,),
    "{a}": {"a": 1},
    "True": True,
    "len": len,
    "2.5": 2.5,
    "[a]": ["a"],
}

# What may be instead, by parameter; a call that takes more, or less, has its own row.
FLAGS = "0 True"
ACCEPTED: dict[str, str] = {
    **dict.fromkeys(
        [
            "strict",
            "training",
            "check_guards",
            "optimize",
            "verify",
            "share_weights",
            "reverse",
            "inplace",
            "no_trace",
            "infer_execution_providers",
            "preallocate_output",
            "use_aot_autograd",
            "saturate_host",
            "annotate_functionals",
            "annotate_modules",
            "annotate_get_attrs",
            "normalize_to_only_use_kwargs",
        ],
        FLAGS,
    ),
    "mod": "module len",
    "model": "module len",
    "kwargs": "None {}",
    "dynamic_shapes": "None {}",
    "decompose": "None {}",
    "preserve_module_call_signature": "[]",
    "name": "x",
    "min": "None 5 0",
    "max": "None huge",
    "path": "None x",
    "partitions": "[]",
    "export_options": "None {} {a}",
    "transfer_rate_bytes_per_sec": "5 0 huge 2.5",
    "mem_latency_sec": "5 0 huge 2.5",
    "computer_latency_sec": "5 0 huge 2.5",
    "available_mem_bytes": "5 0 huge 2.5",
    "logical_id": "5 -1 0 huge",
    "input_names": "None [] [a]",
    "output_names": "None [] [a]",
    "opset": "None",
    "custom_lowerings": "None {}",
    "report": "None",
    "dynamic_axes": "None {}",
    "module_functions": "[] [a]",
    "table": "None {}",
    "preserve_ops": "[] {}",
    "options": "None {}",
    "preferred_execution_providers": "None x [] [a]",
    "qualname_map": "None {} {a}",
    "default_execution_providers": "None x [] [a]",
    "ort_session_options": "None",
    "pre_ort_model_transforms": "None []",
    "serialized_type_name": "None x",
    "given": "None {}",
    "external_data": f"None {FLAGS}",
    "include_initializers": FLAGS,
    "keep_initializers_as_inputs": FLAGS,
    "names": "{}",
    "state_dict": "None",
    "rtol": "None 5 0 2.5",
    "atol": "None 5 0 2.5",
    "concrete_args": "None {} {a}",
    "meta_args": "None {}",
    "iters": "5 0 huge",
    "warmup": "5 0 huge",
    "runs": "5 huge",
    "pass_config": "None {}",
    "module_name": "x",
    "callback": "module class len",
    "root": "None module",
    "torch_module": "None module",
    "arg_types": "None [] (1,) [a]",
    "kwarg_types": "None {} {a}",
    "nodes": "[]",
    "node_to_latency_mapping": "{}",
    "node_to_partition_mapping": "{} {a}",
    "profiled": "{}",
    "partition_to_logical_device_mapping": "{} ",
    "micro_batches": "5 huge",
    "devices": "[]",
    "memory_bytes": "None 5 0 huge 2.5",
    "processes": "None 5 huge",
    "batch": "None x",
    "stages": "None 5 huge module class len",
    "threads": "None 5 huge",
    "imports": "[] [a]",
    "timeout": "5 huge 2.5",
    "start_timeout": "5 huge 2.5",
    "partition_id": "5 -1 0 huge",
    "f": "module class len",
    "combine_fn": "module class len",
    "assume": "x [] {} True tensor",
    "before": "x 5 -1 0 huge 2.5",
    "after": "x 5 -1 0 huge 2.5",
    "old_target": " ".join(VALUES),
    "signature_type": "None 5 -1 0 x object nan huge tensor module class (1,) True len 2.5",
    "argument_type": "None 5 -1 0 x object nan huge tensor module class (1,) True len 2.5",
    "new_target": "class len",
    "value": "5 -1 0 huge",
    "file": "x",
    "example_inputs": "tensor [] (1,) [a]",
    "dim": "5 -1 0 huge",
}
OWN_ROWS: dict[str, str] = {
    "gp.onnx.export kwargs": "None {} x",
    "gp.onnx.export f": "None x",
    "gp.onnx.export external_data": "",
    "gp.partition.pipeline stages": "None 5 -1 0 huge module class len [] [a]",
    "gp.AdditionalInputs.add args": "(1,)",
    "gp.AdditionalInputs.add kwargs": "None {} {a}",
    "gp.AdditionalInputs.dynamic_shapes args": "(1,)",
    "gp.Dim.AUTO min": "None 5 -1 0 2.5",
    "gp.ShapesCollection.dynamic_shapes args": "(1,)",
    "gp.Dim.AUTO max": "None 5 huge 2.5",
    "gp.Dim max": "None 5 huge",
    "gp.dims max": "None 5 huge",
    "gp.ExportedProgram.tensor name": "",
    "gp.refine_dynamic_shapes dynamic_shapes": "None [] {} (1,) {a} [a]",
    "gp.onnx.ONNXProgram.save path": "x",
    "gp.onnx.ONNXProgram.verify args": "None (1,)",
    "gp.onnx.ONNXProgram.verify kwargs": "None {} {a}",
    "gp.onnx.lowering name": "",
    "gp.onnx.ONNXProgram.verify atol": "None 5 0 2.5",
    "gp.fx.normalize_module args": "[] (1,) [a]",
    "gp.onnx.ONNXProgram.adapt_torch_outputs_to_onnx out": (
        "5 -1 0 nan tensor (1,) {a} True 2.5 [] {}"
    ),
    "gp.fx.get_size_of_all_nodes args": "None [] (1,) [a]",
    "gp.fx.normalize_function args": "[] (1,) [a]",
    "gp.fx.normalize_function target": "module class len",
    "gp.fx.normalize_function kwargs": "None {} {a}",
    "gp.fx.normalize_module kwargs": "None {} {a}",
    "gp.fx.normalize_module target": "x",
    "gp.fx.normalize_module root": "module",
    "gp.fx.fuse model": "module",
    "gp.fx.merge_matmul model": "module",
    "gp.fx.remove_dropout model": "module",
    "gp.fx.optimize_for_inference model": "module",
    "gp.fx.RewritingTracer root": "module",
    "gp.fx.meta_trace root": "module",
    "gp.fx.create_type_hint x": " ".join(VALUES),
    "gp.onnx.ExportOptions dynamic_shapes": "None 0 True",
    "gp.onnx.ExportOptions verify": "0 True {}",
    "gp.onnx.export verify": "0 True {}",
    "gp.partition.simulate devices": "[] (1,)",
    "gp.onnx.ExportOptions report": "None x",
    "gp.partition.PartitionerConfig devices": "",
    "gp.fx.to_folder folder": "x",
    "gp.partition.simulate transfer_rate_bytes_per_sec": "5 huge 2.5",
    "gp.scan xs": "tensor [] {}",
    "gp.map xs": "tensor",
    "gp.load file": "x",
    "gp.scan init": " ".join(VALUES),
    "gp.partition.get_extra_size_of nodes": "",
    "gp.partition.Partition nodes": "[] {}",
    "gp.partition.NodeLatency mem_latency_sec": "5 0 huge 2.5",
    "gp.export kwargs": "None {}",
    "gp.partition.get_latency_of_one_partition node_to_latency_mapping": "",
    "gp.partition.simulate node_to_latency_mapping": "",
    "gp.partition.get_partition_to_latency_mapping node_to_latency_mapping": "",
    "gp.partition.get_bottleneck_of_partitioned_graph node_to_latency_mapping": "",
    "gp.partition.get_device_loads node_to_latency_mapping": "",
}
NAMED_OTHERWISE = {
    "mod": "nn.Module|class int",
    "model": "nn.Module|class int|module",
    "args": "argument|operands",
    "gm": "GraphModule",
    "fx_module": "GraphModule",
    "program": "ExportedProgram",
    "given": "options|ExportOptions",
    "root": "does not have",
    "old_op": "kind of node",
    "new_op": "kind of node",
    "new_target": "needs a function",
    "xs": "goes over",
    "cls": "dataclass",
    "folder": "path",
    "options": "options",
    "file": "path",
    "name": "operator",
    "stages": "stage|no module of the program is called",
    "processes": "stages",
    "custom_lowerings": "operator",
    "state_dict": "weights",
}
"""What stands in an error where the parameter's own name would say less."""


THEIR_OWN = (
    "gp.map f",
    "gp.scan combine_fn",
    "gp.scan init",
    "gp.scan dim",
    "gp.fx.split_module callback",
    "gp.onnx.ONNXProgram.verify args",
    "gp.onnx.ONNXProgram.verify kwargs",
)
"""Where the user's own function fails, or the check of a program's inputs says what is wrong."""


def names() -> Iterator[tuple[str, Any]]:
    """All that `__all__` lists."""
    for place in ("gp", "gp.onnx", "gp.ort", "gp.fx", "gp.partition"):
        package: Any = gp
        for part in place.split(".")[1:]:
            package = getattr(package, part)
        yield from ((f"{place}.{name}", getattr(package, name)) for name in package.__all__)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    gp.save(EP, "program.gpx")


def test_every_public_name_is_here() -> None:
    here = {*CALLS, *RECORDS}
    assert not [name for name, _ in names() if name not in here]


@pytest.mark.parametrize("name", [n for n, call in CALLS.items() if call.runs])
def test_the_right_call(name: str) -> None:
    CALLS[name].fn(**CALLS[name].arguments)


ARGUMENTS = [f"{name} {parameter}" for name, call in CALLS.items() for parameter in call.arguments]


def accepted(which: str) -> set[str]:
    parameter = which.split()[1]
    return set(OWN_ROWS.get(which, ACCEPTED.get(parameter, "")).split())


@pytest.mark.parametrize("which", ARGUMENTS)
def test_a_wrong_argument(which: str) -> None:
    name, parameter = which.split()
    call = CALLS[name]
    words = f"{parameter}|{NAMED_OTHERWISE.get(parameter, parameter)}"
    for label in sorted(VALUES.keys() - accepted(which)):
        with pytest.raises(ExportError, match=words) as found:
            call.fn(**{**call.arguments, parameter: VALUES[label]})
            pytest.fail(f"{label} is accepted")
        assert not isinstance(found.value, InternalError)


@pytest.mark.parametrize(
    "which", [w for w in ARGUMENTS if accepted(w) and CALLS[w.split()[0]].runs]
)
def test_another_argument_that_is_accepted(which: str) -> None:
    """It may still be refused for what it holds, or fail in what the user gave."""
    name, parameter = which.split()
    call = CALLS[name]
    for label in sorted(accepted(which) - {"huge"}):
        try:
            call.fn(**{**call.arguments, parameter: VALUES[label]})
        except (ExportError, OSError):
            pass
        except (TypeError, RuntimeError, ValueError):
            assert which in THEIR_OWN


# The checks themselves


def test_what_is_said() -> None:
    @check_arguments(times=integer(1), names=several(TEXT), loud=FLAG)
    def call(times: int, *, names: Any = None, loud: bool = False) -> int:
        """Documented."""
        return times

    assert call(2, names=["a"], loud=True) == 2 and call.__doc__ == "Documented."
    assert list(inspect.signature(call).parameters) == ["times", "names", "loud"]
    texts = {
        "times is an int of at least 1, got 0": {"times": 0},
        "times is an int of at least 1, got the class int": {"times": int},
        "times is an int of at least 1, got a Tensor": {"times": X},
        "loud is True or False, got 'yes'": {"times": 1, "loud": "yes"},
        "names is a list or tuple, each of its items a str, got 'abc'": {
            "times": 1,
            "names": "abc",
        },
    }
    for text, arguments in texts.items():
        with pytest.raises(InputError) as found:
            call(**arguments)
        assert str(found.value) == f"GP101 {text}"
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        call()  # type: ignore[call-arg]


def test_a_parameter_that_is_not_there() -> None:
    with pytest.raises(TypeError, match="has no parameter other"):
        check_arguments(other=FLAG)(lambda one: one)


def test_records() -> None:
    @check_fields(count=integer(0))
    class Pair(NamedTuple):
        count: int
        other: Any = None

    assert Pair(1) == (1, None) and Pair(1)._replace(other=3).other == 3
    with pytest.raises(InputError, match="count is an int"):
        Pair(count=-1)
