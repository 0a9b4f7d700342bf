"""The FX toolkit: what works on graphs and symbolic sizes whatever they were captured with."""

from typing import TYPE_CHECKING

from graphport.loading import on_demand

if TYPE_CHECKING:
    from graphport.fx.annotating import AnnotateTypesWithSchema, annotate_getitem_nodes
    from graphport.fx.asserting import RewritingTracer
    from graphport.fx.conv_bn import fuse
    from graphport.fx.dropout import remove_dropout
    from graphport.fx.folders import to_folder
    from graphport.fx.manipulation import (
        get_size_of_all_nodes,
        lift_lowering_attrs_to_nodes,
        replace_target_nodes_with,
        size_bytes,
    )
    from graphport.fx.matmuls import merge_matmul
    from graphport.fx.meta_tracing import meta_trace
    from graphport.fx.mkldnn import gen_mkl_autotuner, optimize_for_inference, use_mkl_length
    from graphport.fx.module_arguments import normalize_module
    from graphport.fx.normalising import NormalizeArgs, NormalizeOperators
    from graphport.fx.schemas import normalize_function
    from graphport.fx.shape_prop import ShapeProp, TensorMetadata
    from graphport.fx.splitting import split_module
    from graphport.fx.type_hints import create_type_hint, type_matches
    from graphport.fx.validation import validate

_PLACES = {
    "AnnotateTypesWithSchema": "annotating",
    "NormalizeArgs": "normalising",
    "NormalizeOperators": "normalising",
    "RewritingTracer": "asserting",
    "ShapeProp": "shape_prop",
    "TensorMetadata": "shape_prop",
    "annotate_getitem_nodes": "annotating",
    "create_type_hint": "type_hints",
    "fuse": "conv_bn",
    "gen_mkl_autotuner": "mkldnn",
    "get_size_of_all_nodes": "manipulation",
    "lift_lowering_attrs_to_nodes": "manipulation",
    "merge_matmul": "matmuls",
    "meta_trace": "meta_tracing",
    "normalize_function": "schemas",
    "normalize_module": "module_arguments",
    "optimize_for_inference": "mkldnn",
    "remove_dropout": "dropout",
    "replace_target_nodes_with": "manipulation",
    "size_bytes": "manipulation",
    "split_module": "splitting",
    "to_folder": "folders",
    "type_matches": "type_hints",
    "use_mkl_length": "mkldnn",
    "validate": "validation",
}
"""The file of each name."""

__all__ = [
    "AnnotateTypesWithSchema",
    "NormalizeArgs",
    "NormalizeOperators",
    "RewritingTracer",
    "ShapeProp",
    "TensorMetadata",
    "annotate_getitem_nodes",
    "create_type_hint",
    "fuse",
    "gen_mkl_autotuner",
    "get_size_of_all_nodes",
    "lift_lowering_attrs_to_nodes",
    "merge_matmul",
    "meta_trace",
    "normalize_function",
    "normalize_module",
    "optimize_for_inference",
    "remove_dropout",
    "replace_target_nodes_with",
    "size_bytes",
    "split_module",
    "to_folder",
    "type_matches",
    "use_mkl_length",
    "validate",
]

__getattr__ = on_demand(__name__, __name__, _PLACES)
