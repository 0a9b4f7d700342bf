"""Options of the backend, instances by options, and execution providers."""

from __future__ import annotations

import dataclasses

import onnxruntime
import pytest
import torch
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed

import graphport as gp
from graphport.errors import InputError, UsageError
from graphport.onnx.options import ExportOptions
from graphport.runtime import OrtBackend, OrtBackendOptions
from graphport.runtime.options import select_providers

CPU = "CPUExecutionProvider"


def nothing(model):
    pass


OPTIONS = [
    OrtBackendOptions(),
    OrtBackendOptions(use_aot_autograd=True),
    OrtBackendOptions(use_aot_autograd=False),
    OrtBackendOptions(preallocate_output=True),
    OrtBackendOptions(infer_execution_providers=False),
    OrtBackendOptions(strict=True),
    OrtBackendOptions(preferred_execution_providers=["A", "B", "C"]),
    OrtBackendOptions(preferred_execution_providers=["A", ("C", {"option": "value"})]),
    OrtBackendOptions(default_execution_providers=["Something"]),
    OrtBackendOptions(export_options=ExportOptions(dynamic_shapes=True)),
    OrtBackendOptions(use_aot_autograd=False, export_options=ExportOptions(opset=20)),
    OrtBackendOptions(pre_ort_model_transforms=[nothing]),
]


@pytest.mark.parametrize("options", [None, *OPTIONS])
def test_equal_options_share_an_instance(options):
    assert OrtBackend.get_cached_instances() == ()
    backend = OrtBackend.get_cached_instance_for_options(options)
    assert OrtBackend.get_cached_instance_for_options(options) is backend
    assert OrtBackend.get_cached_instances() == (backend,)
    as_mapping = dataclasses.asdict(options) if options else {}
    assert OrtBackend.get_cached_instance_for_options(as_mapping) is backend
    assert OrtBackend.get_cached_instances() == (backend,)


def test_options_that_differ_have_instances_of_their_own():
    given = [o for o in OPTIONS if o != OrtBackendOptions()]
    found = {id(OrtBackend.get_cached_instance_for_options(o)) for o in given}
    assert len(found) == len(given) == len(OrtBackend.get_cached_instances())


def test_what_is_said_and_what_holds_anyhow_are_the_same():
    one = OrtBackend.get_cached_instance_for_options({"export_options": {"target": "ort"}})
    assert OrtBackend.get_cached_instance_for_options({}) is one
    lists = {"preferred_execution_providers": ["A", ["B", {"b": 1, "a": 2}]]}
    tuples = {"preferred_execution_providers": ("A", ("B", {"a": 2, "b": 1}))}
    two = OrtBackend.get_cached_instance_for_options(lists)
    assert OrtBackend.get_cached_instance_for_options(tuples) is two


def test_options_compare_by_value():
    assert OrtBackendOptions(strict=True) == OrtBackendOptions(strict=True)
    assert OrtBackendOptions(strict=True) != OrtBackendOptions()
    assert OrtBackendOptions.of({"strict": True}) == OrtBackendOptions(strict=True)
    assert OrtBackend({"strict": True}).options == OrtBackendOptions(strict=True)


def test_options_with_session_options_are_never_shared():
    options = OrtBackendOptions(ort_session_options=onnxruntime.SessionOptions())
    one = OrtBackend.get_cached_instance_for_options(options)
    assert OrtBackend.get_cached_instance_for_options(options) is not one
    assert len(OrtBackend.get_cached_instances()) == 2


def test_instances_are_forgotten():
    one = OrtBackend.get_cached_instance_for_options()
    OrtBackend.clear_cached_instances()
    assert OrtBackend.get_cached_instances() == ()
    assert OrtBackend.get_cached_instance_for_options() is not one


def test_an_option_that_is_unknown():
    with pytest.raises(InputError, match="OrtBackendOptions has no provider, threads") as error:
        OrtBackendOptions.of({"threads": 2, "provider": "CPU"})
    assert "preferred_execution_providers" in error.value.fix[0]
    with pytest.raises(InputError, match="ExportOptions has no op"):
        OrtBackend.get_cached_instance_for_options({"export_options": {"op": 20}})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("strict", "an OrtBackendOptions or a mapping"),
        ({"export_options": {"opset": 3}}, "opset=3"),
        ({"export_options": {"nope": 3}}, "ExportOptions has no nope"),
        ({"ort_session_options": {}}, "is an onnxruntime.SessionOptions"),
    ],
    ids=str,
)
def test_options_that_mean_nothing(options, says):
    with pytest.raises(InputError, match=says):
        OrtBackend(options)


def test_an_instance_has_options_of_its_own():
    x = torch.ones(2, 3)
    backend = OrtBackend({"strict": True})
    torch.compile(nn.Linear(3, 3), backend=backend, options={"strict": True})(x)
    compiled = torch.compile(nn.Linear(3, 3), backend=OrtBackend(), options={"strict": True})
    with pytest.raises(Exception, match="an OrtBackend has its own options"):
        compiled(x)


def test_one_instance_for_one_set_of_options_of_torch_compile():
    def twice(x):
        return x * 2

    def thrice(x):
        return x * 3

    x = torch.ones(3)
    torch.compile(twice, backend="graphport", options=OrtBackendOptions(strict=True))(x)
    torch.compile(thrice, backend="onnxrt", options={"strict": True})(x)
    (backend,) = OrtBackend.get_cached_instances()
    assert backend.execution_count == 2
    assert len(backend.sessions) == 2
    torch._dynamo.reset()
    torch.compile(twice, backend="graphport")(x)
    assert len(OrtBackend.get_cached_instances()) == 2


# Providers


INSTALLED = ("CUDAExecutionProvider", "OpenVINOExecutionProvider", CPU)


def of(options, *devices, installed=INSTALLED):
    return select_providers(
        OrtBackendOptions.of(options), [torch.device(d) for d in devices], installed
    )


def test_providers_follow_from_the_devices():
    assert of({}, "cpu") == [CPU]
    assert of({}, "meta") == [CPU]
    assert of({}) == [CPU]
    assert of({}, "cpu", "cuda") == ["CUDAExecutionProvider", CPU]
    assert of({}, "cuda:1", "cuda:0") == ["CUDAExecutionProvider", CPU]
    assert of({"infer_execution_providers": False}, "cuda") == [CPU]


def test_preferred_providers_come_first_and_default_ones_last():
    with_options = ("OpenVINOExecutionProvider", {"device_type": "CPU"})
    preferred = {"preferred_execution_providers": [with_options]}
    assert of(preferred, "cuda") == [with_options, "CUDAExecutionProvider", CPU]
    default = {"default_execution_providers": ["OpenVINOExecutionProvider"]}
    assert of(default, "cuda") == ["CUDAExecutionProvider", "OpenVINOExecutionProvider"]
    both = {"preferred_execution_providers": [(CPU, {"a": "1"})], **default}
    assert of(both, "cpu") == [(CPU, {"a": "1"}), "OpenVINOExecutionProvider"]


def test_a_name_alone_is_a_list_of_one():
    cpu = "CPUExecutionProvider"
    options = OrtBackendOptions(preferred_execution_providers="A", default_execution_providers=cpu)
    assert select_providers(options, [], ["A", cpu]) == ["A", cpu]


ABSENT = "RknpuExecutionProvider"
"""Known to ONNX Runtime, and no part of its packages."""


def test_providers_that_are_not_installed_are_passed_over():
    assert of({"preferred_execution_providers": [ABSENT, CPU]}, "cpu", installed=()) == [CPU]
    alone = {"infer_execution_providers": False, "default_execution_providers": [ABSENT]}
    with pytest.raises(UsageError, match=f"none of the execution providers {ABSENT}") as error:
        of(alone, "cpu")
    assert CPU in error.value.fix[0]


def test_a_provider_that_is_missing_is_an_error_not_a_fallback():
    options = {"infer_execution_providers": False, "default_execution_providers": [ABSENT]}
    compiled = torch.compile(lambda x: x + 1, backend=OrtBackend(options))
    with pytest.raises(BackendCompilerFailed, match=f"execution providers {ABSENT}"):
        compiled(torch.ones(3))


def test_a_name_that_no_provider_has_is_an_error():
    with pytest.raises(UsageError, match="has no execution provider CudaProvider") as error:
        of({"preferred_execution_providers": ["CudaProvider", CPU]}, "cpu")
    assert CPU in error.value.fix[0]


def test_options_of_a_provider_reach_the_session():
    backend = OrtBackend({"preferred_execution_providers": [(CPU, {})]})
    torch.compile(lambda x: x + 1, backend=backend)(torch.ones(3))
    ((record,),) = backend.sessions.values()
    assert record.session.get_providers() == [CPU]


def test_the_package_gives_the_names():
    assert gp.ort.OrtBackend is OrtBackend
    assert gp.ort.OrtBackendOptions is OrtBackendOptions
