"""Every private name of torch that graphport uses: where torch has it, and what it is for.

`from graphport.compat.torch import pytree` imports it, then and not before: this module itself
costs nothing. Nothing else in graphport asks which torch this is.
"""

from __future__ import annotations

import re
from contextlib import suppress
from importlib import import_module
from typing import Any

from graphport.errors import MissingPackageError

ATTENTION_KERNELS = ("math", "flash", "mem_efficient", "cudnn", "overrideable")

# "module" or "module:attribute", and what it is for. The name here is the last part, without its
# underscores, unless the row begins with another: "name = module:attribute". A name that moves
# from one version of torch to another has several places: "module:attribute or module:attribute";
# one that not every version has ends in "or nothing", and is None there.
ROWS: dict[str, str] = {
    # Containers
    "torch.utils._pytree": "flattens containers and rebuilds them",
    "torch.utils._pytree:TreeSpec": "the structure of a container",
    # Operators
    "torch._ops:OperatorBase": "the class of everything under torch.ops",
    "torch._ops:OpOverload": "the class of operators",
    "torch._ops:OpOverloadPacket": "the class of operators of one name",
    "torch._ops:HigherOrderOperator": "the class of operators that take functions",
    "higher_order_registry = torch._ops:_higher_order_ops": "higher-order operators by name",
    "torch._C:DispatchKey": "for which backend a kernel is",
    "torch._C:_dispatch_has_kernel": "whether the dispatcher knows an operator",
    "torch._C:_dispatch_has_kernel_for_dispatch_key": "whether an operator is composite",
    "torch._C:_dispatch_get_all_op_names": "tells an unknown operator from an unknown library",
    "torch._C:_jit_get_schemas_for_operator": "schemas of an operator, by its name",
    "torch._C:_jit_get_all_schemas": "those of all operators",
    "torch._C:parse_schema": "a schema from its text",
    "torch._C:Graph": "a graph of TorchScript",
    "ScriptObject = torch._C:ScriptModule": "what a scripted module is in its graphs",
    "torch._C:ScriptMethod": "which is called with Python's arguments",
    "torch._C:_jit_pass_inline": "the graph of a function that a graph calls",
    "torch.jit._builtins:_find_builtin": "the operator behind a function",
    "torch._jit_internal:boolean_dispatched": "functions that choose one of two by a flag",
    "torch._C:_jit_try_infer_type": "the type of an attribute of a module",
    "torch._library.simple_registry": "fake implementations of custom operators",
    "torch._library.fake_impl": "where these ask for new sizes",
    "torch._higher_order_ops.auto_functionalize:can_auto_functionalize": "writes of a custom op",
    # Control flow
    "torch._higher_order_ops": "whose functions call the user's",
    "higher_order_map = torch._higher_order_ops:map": "gp.map in a program",
    "higher_order_scan = torch._higher_order_ops:scan": "gp.scan in a program",
    "cond_module = torch._higher_order_ops.cond": "checks operands before capture can",
    "while_loop_module = torch._higher_order_ops.while_loop": "checks operands before capture can",
    "scan_module = torch._higher_order_ops.scan": "checks operands before capture can",
    "invoke_subgraph_module = torch._higher_order_ops.invoke_subgraph": "a region to compile once",
    "torch._higher_order_ops.flex_attention:math_attention": "what flex_attention computes",
    # Decompositions
    "torch._decomp:decomposition_table": "operators in terms of others",
    "torch._decomp:core_aten_decompositions": "those that lead to core ATen",
    "torch._decomp:_core_aten_decompositions_post_autograd": "those without derivatives",
    "torch._refs": "whose decompositions lead to prims, not to ATen",
    "torch._prims": "whose kernels are functions of ATen",
    "resize_linear = torch._decomp.decompositions:_upsample_linear": "of pixels, as in the kernel",
    "torch._decomp.decompositions:upsample_bicubic2d_default": "of pixels, as in the kernel",
    "torch._decomp.decompositions:upsample_compute_output_size": "sizes from scale factors",
    "torch._prims_common:suggest_memory_format": "the order of dims in memory that a kernel keeps",
    # Modes
    "torch.utils._python_dispatch:TorchDispatchMode": "sees operators",
    "torch.utils._python_dispatch:_disable_current_modes": "computes with data during capture",
    "torch.utils._python_dispatch:_get_current_dispatch_mode": "the innermost dispatch mode",
    "torch.utils._python_dispatch:_get_current_dispatch_mode_stack": "all dispatch modes, in order",
    "torch.overrides:_get_current_function_mode": "the innermost function mode",
    "torch.overrides:_get_current_function_mode_stack": "all function modes, in order",
    "torch.utils._python_dispatch:_is_in_torch_dispatch_mode": "a note on modes, of all threads",
    "torch.utils._python_dispatch:_is_in_non_infra_torch_dispatch_mode": "of modes not torch's own",
    "torch.utils._python_dispatch:_is_in_any_mode_without_ignore_compile_internals": "the same",
    "torch._C._dynamo.guards:set_is_in_mode_without_ignore_compile_internals": "its copy in C",
    "torch._C:_len_torch_function_stack": "restores modes",
    "torch._C:_pop_torch_function_stack": "restores modes",
    "torch._C:_push_on_torch_function_stack": "restores modes",
    "torch._C:_len_torch_dispatch_stack": "restores modes",
    "torch._C:_pop_torch_dispatch_stack": "restores modes",
    "torch._C:_push_on_torch_dispatch_stack": "restores modes",
    # State of the thread
    "torch._C:_get_torch_function_state": "whether functions are seen",
    "torch._C:_set_torch_function_state": "restores that",
    "torch._C:_dispatch_tls_local_exclude_set": "the dispatch keys that are left out",
    "torch._C:_dispatch_tls_set_dispatch_key_excluded": "restores them",
    "torch._C:_set_grad_enabled": "as graphs of torch call it, and to restore it",
    "torch._C:_autocast_supported_devices": "where autocast has a dtype to restore",
    "torch._C:_is_any_autocast_enabled": "whether autocast is on, on any device",
    "torch.amp:_enter_autocast": "what autocast is in a graph",
    "torch.amp:_exit_autocast": "what autocast is in a graph",
    "torch._C:_DisableAutocast": "autocast has been recorded already",
    "torch._C:_DisableTorchDispatch": "past all dispatch modes",
    "torch._C:DisableTorchFunction": "past all function modes",
    "torch._C:DisableTorchFunctionSubclass": "past __torch_function__ of classes alone",
    "torch._C:_AutoDispatchBelowADInplaceOrView": "composites arrive whole, views are ours",
    "torch.compiler:_is_compiling_flag": "models ask whether they are captured",
    "torch.compiler:_is_exporting_flag": "models ask whether they are captured",
    "torch.onnx._constants:ONNX_DEFAULT_OPSET": "what torch.onnx.export writes if it is not said",
    "onnx_export_flags = torch.onnx._internal.exporter._flags": "whether they are exported",
    **{f"torch._C:_get_{k}_sdp_enabled": "whether attention may be it" for k in ATTENTION_KERNELS},
    **{f"torch._C:_set_sdp_use_{k}": "switches that" for k in ATTENTION_KERNELS},
    "pad_packed = torch:_pad_packed_sequence": "as torch.nn.utils.rnn calls it",
    "torch._C:_get_mkldnn_enabled": "whether recurrent layers are one operator of oneDNN's",
    "torch._C:_set_mkldnn_enabled": "switches that",
    # Tensors
    "torch._C:TensorBase": "the class that has a tensor's methods",
    "torch._subclasses.fake_tensor:FakeTensor": "a tensor without data, of torch's",
    "torch._subclasses.fake_tensor:FakeTensorMode": "makes them",
    "torch:Tensor._make_wrapper_subclass": "a tensor with sizes and no memory",
    "torch._C:_disabled_torch_function_impl": "a class whose functions are torch's",
    "torch._C:_disabled_torch_dispatch_impl": "a class whose operators are torch's",
    "torch.utils._python_dispatch:is_traceable_wrapper_subclass": "a tensor made of others",
    "torch._C._functorch:is_functorch_wrapped_tensor": "one of many, within torch.vmap",
    "torch._C._functorch:is_dead_tensor_wrapper": "one that a transform has left behind",
    "torch._C._functorch:get_unwrapped": "what it wraps",
    "torch:_conj": "a view that reads conjugates",
    "torch:_neg_view": "a view that reads the negative",
    "torch._C:_set_conj": "makes a tensor read conjugates",
    "torch._C:_set_neg": "makes a tensor read the negative",
    "torch._C._dynamo.guards:_empty_strided_cpu": "memory for a result, in a third of the time",
    "torch._C:_to_dlpack": "hands a tensor to ONNX Runtime",
    "torch:_sym_sqrt": "the root of a size",
    "torch_check = torch:_check": "an assertion on sizes",
    "torch_numpy = torch._numpy": "numpy's functions, on tensors",
    "torch_onnx = torch.onnx": "what `graphport run` redirects; it takes long to import",
    "onnx_decompositions = torch.onnx.ops:aten_decompositions": "of torch.onnx.ops in a program",
    "torch:_assert_async": "an assertion on data, in a program",
    # Modules, and what reads and fills them
    "torch.nn.modules._functions:BackwardHookFunction": "how modules see gradients",
    "torch.nn.modules.dropout:_DropoutNd": "the class of all dropouts",
    "trunc_normal = torch.nn.init:_no_grad_trunc_normal_": "an initialiser that looks at data",
    "torch.nn:LinearCrossEntropyOptions or nothing": "how many rows at once; since 2.13",
    "torch.distributions:Distribution._validate_args": "would look at data during capture",
    "torch.serialization:_open_file_like": "which file torch.load reads",
    "load_zip = torch.serialization:_load": "reads a checkpoint",
    "torch.serialization:_is_meta_location": "whether it is to read no data",
    "torch._utils:_rebuild_tensor": "makes each tensor of it",
    # Graphs
    "torch.fx.graph:_PyTreeCodeGen": "code of a graph that takes containers",
    "torch.fx.graph:_PyTreeInfo": "what these containers are",
    "torch.fx._lazy_graph_module:_LazyGraphModule": "makes its code when it is needed",
    "torch.fx.graph_module:_forward_from_src": "a function from its code",
    "torch.fx.graph_module:_print_readable": "the text of a graph and its subgraphs",
    "torch.fx.node:_side_effectful_functions": "calls that stay although nothing reads them",
    # torch.compile
    "torch._dynamo": "whose errors are told in other words",
    "torch._dynamo.trace_rules": "knows functions by their ids",
    "torch._dynamo.eval_frame": "whether compiled functions run as they are written",
    "torch._dynamo.backends.common:aot_autograd": "graphs of derivatives",
    "torch._functorch.aot_autograd:make_boxed_func": "a function as AOTAutograd calls it",
    # torch.export
    "torch.fx.experimental.dynamic_spec or nothing": "dynamic shapes as variables; since 2.13",
    "torch._dynamo.source:ConstantSource": "how a guard calls a number",
    "torch._dynamo.source:GetItemSource": "how a guard calls an item",
    "torch._dynamo.source:LocalSource": "how a guard calls the inputs",
    "torch._dynamo.source:TensorPropertySource": "how a guard calls a size",
    "torch._dynamo.source:TensorProperty": "which of its properties",
    "torch._guards:Source": "how a guard calls what it is about",
    "torch._guards:GuardSource": "whether that is an input",
    "torch.fx.experimental.symbolic_shapes:_free_unbacked_symbols_with_path": "of a result",
    "torch.utils._sympy.numbers:int_oo": "the end of a range of ints",
    "torch.utils._sympy.numbers:IntInfinity": "its class",
    "torch.utils._sympy.numbers:NegativeIntInfinity": "its class",
    "torch.utils._sympy.value_ranges:ValueRanges": "the range of a symbol",
    "sympy_functions = torch.utils._sympy.functions": "torch's functions of sizes",
    "torch._export.verifier:SpecViolationError": "a program that torch refuses",
    "torch._export.verifier:TrainingIRVerifier": "checks a program before decomposition",
    "torch._export.verifier:Verifier": "checks a program",
    # torch.distributed
    "torch._C._distributed_c10d:FakeWork": "a collective that is done",
    "torch.distributed.distributed_c10d:_get_default_store": "the store that all ranks share",
    "GlooOptions = torch.distributed:ProcessGroupGloo._Options": "devices and time limit",
}

# Private attributes of objects, which are read where the objects are: what this torch must have, at
# the first place that it has.
MEMBERS: dict[str, str] = {
    "torch._ops:OpOverload": "_schema _opname _overloadname _op_dk",
    "torch._library.custom_ops:CustomOpDef": "_opoverload",
    "torch.library:Library": "_register_fake",
    "torch.nn:Module": "_parameters _buffers _modules _non_persistent_buffers_set _get_name "
    "_forward_hooks _forward_pre_hooks _forward_hooks_with_kwargs _forward_pre_hooks_with_kwargs",
    "torch.nn.modules.lazy:LazyModuleMixin": "_infer_parameters",
    "torch.nn:LinearCrossEntropyOptions or nothing": "_compute_batch_chunk_size _adjust",
    "torch.fx.experimental.dynamic_spec:ParamsSpec or nothing": "_named_args _varargs _varkw",
    "torch.fx.experimental.dynamic_spec:ShapesSpec or nothing": "_params",
    "torch.fx.experimental.dynamic_spec:SeqSpec or nothing": "_entries",
    "torch.nn:RNNBase": "_flat_weights _flat_weight_refs",
    "torch:Tensor": "_version _backward_hooks",
    "torch:TypedStorage": "_untyped_storage",
    "torch:UntypedStorage": "_cdata _checkpoint_offset",
    "torch:ScriptObject": "_type",
    "torch._C:ScriptModule": "_get_method",
    "torch.jit:RecursiveScriptModule": "_c",
    "torch.fx:Graph": "_codegen _graph_namespace",
    "torch.fx.graph:_Namespace": "_used_names",
    "torch.fx:GraphModule": "_graph _code _lineno_map _prologue_start _in_spec _out_spec",
    "torch.fx:Tracer": "_autowrap_search _autowrap_function_ids",
    "torch.fx.experimental.symbolic_shapes:ShapeEnv": "_get_sloc",
    "torch.export:ExportedProgram": "_guards_code",
    "torch.onnx._internal.exporter._flags": "_is_onnx_exporting",
    "torch._dynamo.eval_frame:OptimizedModule": "_orig_mod",
    "torch._dynamo.trace_rules": "_builtin_function_ids",
    "torch._dynamo.eval_frame": "_stance",
    "torch._C._functorch": "_grad_increment_nesting _jvp_increment_nesting",
    "torch._functorch.eager_transforms": "_autograd_grad",
    "torch._VF": "_make_dual",
    "torch.distributed.fsdp:FSDPModule": "_get_fsdp_state",
    "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState": "_mp_policy",
    "torch.distributed:ProcessGroupGloo._Options": "_devices _timeout",
}


NOTHING = "nothing"


def _read_row(row: str) -> tuple[str, tuple[str, ...]]:
    name, _, rest = row.rpartition(" = ")
    found = tuple(rest.split(" or "))
    return name or re.split("[.:]", found[0])[-1].strip("_"), found


_PLACES: dict[str, tuple[str, ...]] = dict(map(_read_row, ROWS))


def places_of(name: str) -> tuple[str, ...]:
    """Where torch may have a name, for those who must not import it to ask."""
    return _PLACES[name]


def is_within(module: str, name: str) -> bool:
    """Whether a module, by its name, is in a package of the table."""
    return any(module == place or module.startswith(f"{place}.") for place in places_of(name))


def locate(name: str) -> tuple[Any, str]:
    """What to patch: the owner of a name, and what it is called there."""
    owner, attribute, _ = _search(name)
    return owner, attribute


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = _search(name)[2]
    return found


def _search(name: str) -> tuple[Any, str, Any]:
    """Owner, attribute and value, at the first place that exists."""
    for place in places_of(name):
        if place == NOTHING:
            return None, "", None
        module, _, path = place.partition(":")
        with suppress(ImportError, AttributeError):
            owner = found = import_module(module)
            for part in filter(None, path.split(".")):
                owner, found = found, getattr(found, part)
            return owner, path.rpartition(".")[2], found
    raise MissingPackageError(
        f"torch {import_module('torch').__version__} has no {' or '.join(places_of(name))}",
        fix="install a torch that `graphport doctor` shows as tested",
    )
