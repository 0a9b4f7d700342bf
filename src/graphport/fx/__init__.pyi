"""The public names, each with its place: for type checkers, and for `__init__.py`."""

from graphport.fx.assert_tracer import RewritingTracer as RewritingTracer
from graphport.fx.folders import to_folder as to_folder
from graphport.fx.fusion import fuse as fuse
from graphport.fx.fusion import remove_dropout as remove_dropout
from graphport.fx.manipulation import get_size_of_all_nodes as get_size_of_all_nodes
from graphport.fx.manipulation import lift_lowering_attrs_to_nodes as lift_lowering_attrs_to_nodes
from graphport.fx.manipulation import replace_target_nodes_with as replace_target_nodes_with
from graphport.fx.manipulation import size_bytes as size_bytes
from graphport.fx.matmuls import merge_matmul as merge_matmul
from graphport.fx.meta_tracer import meta_trace as meta_trace
from graphport.fx.mkldnn import gen_mkl_autotuner as gen_mkl_autotuner
from graphport.fx.mkldnn import optimize_for_inference as optimize_for_inference
from graphport.fx.mkldnn import use_mkl_length as use_mkl_length
from graphport.fx.normalize import AnnotateTypesWithSchema as AnnotateTypesWithSchema
from graphport.fx.normalize import NormalizeArgs as NormalizeArgs
from graphport.fx.normalize import NormalizeOperators as NormalizeOperators
from graphport.fx.normalize import annotate_getitem_nodes as annotate_getitem_nodes
from graphport.fx.schemas import create_type_hint as create_type_hint
from graphport.fx.schemas import normalize_function as normalize_function
from graphport.fx.schemas import normalize_module as normalize_module
from graphport.fx.schemas import type_matches as type_matches
from graphport.fx.shape_prop import ShapeProp as ShapeProp
from graphport.fx.shape_prop import TensorMetadata as TensorMetadata
from graphport.fx.split import split_module as split_module
from graphport.symbolic.validate import validate as validate
