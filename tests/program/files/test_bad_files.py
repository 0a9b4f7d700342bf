"""Bad files, kind by kind: each is refused with what is wrong and where."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

import graphport as gp
from graphport.errors import SerializationError
from graphport.program.files import archive
from tests.program.mutations import packed, put, unpacked
from tests.program.saved import saved


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        self.count.add_(1)
        z = self.linear(x) + y
        return torch.cond(z.sum() > 0, lambda z: z + 1, lambda z: z.sin(), (z,)), x.shape[0] // 2


@cache
def good() -> bytes:
    batch = gp.Dim("batch", min=2, max=64)
    example = torch.randn(6, 4), torch.randn(6, 1)
    return saved(gp.export(Model(), example, dynamic_shapes=({0: batch}, {0: batch})))


def refused(data: bytes, *parts: str) -> None:
    with pytest.raises(SerializationError) as error:
        gp.load(io.BytesIO(data))
    for part in parts:
        assert part in str(error.value)


def changed(change: Callable[[Any], Any]) -> bytes:
    document, tensors = unpacked(good())
    result = change(document)
    return packed(document if result is None else result, tensors)


def node(document: Any, name: str) -> Any:
    return next(n for n in document["graph"]["nodes"] if n["name"] == name)


# The archive


def zipped(*members: tuple[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as made:
        for name, content in members:
            made.writestr(name, content)
    return file.getvalue()


def parts() -> list[tuple[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(good())) as file:
        return [(name, file.read(name)) for name in file.namelist()]


def test_an_empty_file() -> None:
    refused(b"", "the file is empty")


def test_another_kind_of_file() -> None:
    refused(b"\x80\x02}q\x00." * 100, "not a program of graphport, or truncated")


@pytest.mark.parametrize("left", [1, 21, 22, 100, 1000, -1, -22, -200])
def test_a_truncated_file(left: int) -> None:
    refused(good()[:left], "truncated")


def test_a_cut_in_the_middle() -> None:
    refused(good()[:500] + good()[700:], "corrupted")


@pytest.mark.parametrize("name", archive.MEMBERS)
def test_a_flipped_bit(name: str) -> None:
    data = bytearray(good())
    data[good().index(dict(parts())[name]) + 20] ^= 4
    refused(bytes(data), f"the data of the member {name!r} is corrupted: its checksum is wrong")


def test_a_zip_bomb() -> None:
    bomb = zipped(("program.json", b" " * 10_000_000), ("tensors.safetensors", b""), method=8)
    refused(bomb, "the member 'program.json' is compressed")


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../program.json", "a/../../b", "C:\\x", "program.py", "program.json/"]
)
def test_a_member_that_is_no_part_of_a_program(name: str) -> None:
    refused(zipped(*parts(), (name, b"")), "which is no part of a program")


def test_a_member_twice() -> None:
    with pytest.warns(UserWarning, match="Duplicate name"):
        data = zipped(*parts(), parts()[0])
    refused(data, "the archive has two members named 'program.json'")


def test_a_missing_member() -> None:
    refused(zipped(parts()[0]), "the archive has no member 'tensors.safetensors'")


def test_a_symbolic_link() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        info = zipfile.ZipInfo("program.json")
        info.create_system, info.external_attr = 3, 0o120777 << 16
        made.writestr(info, "/etc/passwd")
    refused(file.getvalue(), "the member 'program.json' is a symbolic link")


def test_many_members() -> None:
    refused(zipped(*((f"m{i}", b"") for i in range(5000))), "the archive has 5000 members")


def test_members_that_overlap() -> None:
    data = bytearray(good())
    first = data.rindex(b"PK\1\2", 0, data.rindex(b"PK\1\2"))
    second = data.rindex(b"PK\1\2")
    # Both names point to one local header: the second one's name does not agree with it.
    data[second + 42 : second + 46] = data[first + 42 : first + 46]
    refused(bytes(data), "do not agree: corrupted")


def test_a_size_beyond_the_file() -> None:
    data = bytearray(zipped(*parts()))
    at = data.rindex(b"PK\1\2")
    struct.pack_into("<LL", data, at + 20, 1 << 30, 1 << 30)
    refused(bytes(data), "does not fit into the file")


# JSON


def test_no_json() -> None:
    refused(changed(lambda _: "{"), "not valid JSON", "program.json")


def test_no_utf8() -> None:
    _, tensors = unpacked(good())
    refused(packed(b'{"a": "\xff"}', tensors), "the text is not UTF-8")


def test_a_key_twice() -> None:
    refused(
        changed(lambda d: json.dumps(d)[:-1] + ',"version":1}'),
        "the key 'version' is given twice in one object",
    )


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_json_does_not_have(number: str) -> None:
    refused(changed(lambda d: json.dumps(d)[:-1] + f',"x":{number}}}'), "is not a number of JSON")


def test_huge_numbers() -> None:
    refused(changed(lambda d: json.dumps(d)[:-1] + ',"x":1e999}'), "is too large")
    refused(changed(lambda d: json.dumps(d)[:-1] + f',"x":{"9" * 10**6}}}'), "1000000 digits")


@pytest.mark.parametrize("text", ["[" * 10**6, '{"a":' * 10**6])
def test_deeply_nested_json(text: str) -> None:
    refused(changed(lambda _: text), "nested too deeply")


def test_another_document() -> None:
    refused(changed(lambda _: {"version": 1}), "not a program of graphport")
    refused(changed(lambda _: [1]), "not a program of graphport")


def test_a_newer_version() -> None:
    refused(
        changed(lambda d: d.update(version=2)),
        "version 2 of the format is newer than 1, the latest that this graphport reads",
        "pip install -U graphport",
    )


@pytest.mark.parametrize("version", [0, -1, "1", None, 1.0])
def test_an_unknown_version(version: Any) -> None:
    refused(changed(lambda d: d.update(version=version)), "unknown version")


def test_a_missing_and_an_unknown_field() -> None:
    refused(changed(lambda d: d.pop("symbols") and None), "the field 'symbols' is missing")
    refused(changed(lambda d: d.update(more=1)), "unknown field 'more'")


@pytest.mark.parametrize("dialect", ["NONSENSE", "", "aten"])
def test_an_unknown_dialect(dialect: str) -> None:
    refused(changed(lambda d: d.update(dialect=dialect)), "unknown dialect")


# The graph


def test_an_unknown_operator() -> None:
    refused(
        changed(lambda d: node(d, "linear").update(target="aten::linnear")),
        "the operator 'aten::linnear' is not registered in this process",
        "program.json: graph.nodes[",
        "run with the version that the file was written with: graphport",
    )


def test_an_operator_of_a_library_that_is_not_imported() -> None:
    refused(
        changed(lambda d: node(d, "linear").update(target="theirs::linear")),
        "the operator 'theirs::linear' is not registered",
        "import the library that registers 'theirs' before loading",
    )


@pytest.mark.parametrize(
    "target",
    [
        "os.system",
        "builtins.eval",
        "builtins.exec",
        "torch.load",
        "torch.ops.load_library",
        "eval",
        "operator.attrgetter",
        "builtins.__import__",
        "higher_order.print",
        "torch.hub.load",
    ],
)
def test_functions_that_no_program_calls(target: str) -> None:
    refused(
        changed(lambda d: node(d, "linear").update(target=target)),
        repr(target.split(".")[-1] if target.startswith("higher") else target),
    )


def test_an_operator_that_opens_files() -> None:
    refused(
        changed(lambda d: node(d, "linear").update(target="aten::from_file", args=["/tmp/x"])),
        "the operator aten::from_file may do more than compute",
        'gp.load(..., allow=("aten::from_file",))',
    )


def calling(target: str, args: list[Any]) -> bytes:
    """A program of one call."""
    document, tensors = unpacked(saved(gp.export(torch.relu, (torch.ones(4),))))
    node(document, "relu").update(target=target, args=args)
    return packed(document, tensors)


X = {"node": "args_0"}


@pytest.mark.parametrize(
    ("target", "args", "says"),
    [
        ("inductor::_reinterpret_tensor", [X, [64], [1], 24], "of another library"),
        ("profiler::_record_function_enter_new", ["x"], "of another library"),
        ("aten::_reshape_alias", [X, [64], [1]], "may do more than compute"),
        ("aten::set_grad_enabled", [False], "may do more than compute"),
        ("aten::manual_seed", [3], "may do more than compute"),
    ],
)
def test_operators_that_do_more_than_compute(target: str, args: list[Any], says: str) -> None:
    refused(calling(target, args), says)


@pytest.mark.parametrize("allow", ["inductor::_reinterpret_tensor", "inductor", "*"])
def test_operators_that_the_caller_allows(allow: str) -> None:
    data = calling("inductor::_reinterpret_tensor", [X, [2, 2], [2, 1], 0])
    program = gp.load(io.BytesIO(data), allow=(allow,))
    assert program.module()(torch.ones(4)).shape == (2, 2)
    with pytest.raises(SerializationError, match="of another library"):
        gp.load(io.BytesIO(data), allow=("prims",))


@pytest.mark.parametrize(
    "name",
    [
        "a b",
        "x\n    import os",
        "lambda",
        "self",
        "torch",
        "",
        "1x",
        "a.b",
        "\uff54orch",
        "x)",
        "__debug__",
        "\ud800",
    ],
)
def test_names_that_would_be_code(name: str) -> None:
    def rename(d: Any) -> None:
        for part in ("graph", "signature"):
            d[part] = json.loads(json.dumps(d[part]).replace('"linear"', json.dumps(name)))

    refused(changed(rename), "name")


@pytest.mark.parametrize("name", ["x = 1", "None", "a,b", "**x"])
def test_names_of_keyword_arguments(name: str) -> None:
    refused(
        changed(lambda d: node(d, "linear").update(kwargs=[[name, 1]])),
        f"{name!r} cannot be the name of an argument",
    )


@pytest.mark.parametrize(
    "name", ["__class__", "__dict__", "_modules.x", "forward", "training", "", "a..b", "a" * 5000]
)
def test_names_of_tensors(name: str) -> None:
    def rename(d: Any) -> None:
        for part in ("state_dict", "signature"):
            d[part] = json.loads(json.dumps(d[part]).replace('"count"', json.dumps(name)))

    refused(changed(rename), "cannot be the name of a parameter, buffer or constant")


@pytest.mark.parametrize("name", ["__dict__", "__class__", "_modules", "training", "forward"])
def test_names_of_constants_that_are_no_tensors(name: str) -> None:
    refused(
        changed(lambda d: d["constants"].append([name, 7])),
        "cannot be the name of a parameter, buffer or constant",
    )


@pytest.mark.parametrize("name", ["linear", "linear.weight", "linear.weight.x"])
def test_constants_in_the_place_of_something_else(name: str) -> None:
    refused(changed(lambda d: d["constants"].append([name, 7])), f"{name!r} cannot be stored: ")


def test_a_constant_in_the_place_of_a_module_without_state() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.ReLU()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)

    document, tensors = unpacked(saved(gp.export(Outer(), (torch.ones(3),))))
    document["constants"].append(["layer", 7])
    refused(packed(document, tensors), "'layer' cannot be stored: it is a module that is called")


def test_a_constant_of_a_name_that_graph_modules_have() -> None:
    data = changed(lambda d: d["constants"].append(["real_recompile", 7]))
    program = gp.load(io.BytesIO(data))
    x, y = torch.randn(5, 4), torch.randn(5, 1)
    torch.testing.assert_close(gp.unflatten(program)(x, y), program.module()(x, y))
    assert program.module().real_recompile_ == 7


@pytest.mark.parametrize("parts", [("state_dict", "signature"), ("module_stacks", "module_calls")])
def test_paths_of_many_parts(parts: tuple[str, ...]) -> None:
    """A module each would be more than a file of that length may ask for."""
    old = "linear.weight" if "state_dict" in parts else "linear"
    long = ".".join("a" * 1000)
    data = changed(lambda d: d.update({part: put(d[part], old, long) for part in parts}))
    refused(data, "cannot be the name of a" if "state_dict" in parts else "cannot be the path of a")


@pytest.mark.parametrize("kept", [(), ("graph", "signature")], ids=["everywhere", "in the call"])
def test_a_long_name_of_an_argument(kept: tuple[str, ...]) -> None:
    ep = gp.export(lambda **given: given["beta"] + 1, (), {"beta": torch.ones(3)})
    document, tensors = unpacked(saved(ep))
    long = {k: v if k in kept else put(v, "beta", "b" * 100_000) for k, v in document.items()}
    refused(packed(long, tensors), "a text of 100000 characters")


@pytest.mark.parametrize("name", ["graph", "__class__", "x y", "forward", "p.q"])
def test_names_of_graphs(name: str) -> None:
    refused(
        changed(lambda d: d["graph"]["graphs"][0].__setitem__(0, name)),
        f"{name!r} cannot be the name of a graph",
    )


def test_a_node_that_comes_later() -> None:
    refused(
        changed(lambda d: node(d, "linear").update(args=[{"node": "cond"}])),
        "there is no node 'cond' before this one",
    )


def test_a_node_that_refers_to_itself() -> None:
    refused(
        changed(lambda d: node(d, "linear").update(args=[{"node": "linear"}])),
        "there is no node 'linear' before this one",
    )


def test_two_nodes_of_one_name() -> None:
    refused(
        changed(lambda d: d["graph"]["nodes"].insert(0, d["graph"]["nodes"][0])),
        "there are two nod",
    )


def test_a_missing_output() -> None:
    refused(changed(lambda d: d["graph"]["nodes"].pop() and None), "has one output")


def test_an_input_in_the_middle() -> None:
    def move(d: Any) -> None:
        nodes = d["graph"]["nodes"]
        nodes.insert(len(nodes) - 1, {"op": "placeholder", "name": "late"})

    refused(changed(move), "the inputs of a graph come before all other nodes")


def test_deeply_nested_graphs() -> None:
    def nest(d: Any) -> None:
        inner = d["graph"]["graphs"][0][1]
        for _ in range(60):
            inner = {
                "nodes": [{"op": "get_attr", "name": "g", "target": "g"}, inner["nodes"][-1]],
                "graphs": [["g", inner]],
            }
        d["graph"]["graphs"][0][1] = inner

    refused(changed(nest), "graphs are nested too deeply")


def test_deeply_nested_arguments() -> None:
    def nest(d: Any) -> None:
        argument: Any = 1
        for _ in range(100):
            argument = [argument]
        node(d, "linear")["args"] = [argument]

    refused(changed(nest), "lists are nested too deeply")


def test_a_million_nodes_in_one_place() -> None:
    nodes = [{"op": "placeholder", "name": "x"}] * 1_000_000
    refused(changed(lambda d: d["graph"].update(nodes=nodes)), "there are two nodes named 'x'")


@pytest.mark.parametrize("name", ["::", "a::", "::b", "a::b::c", "aten::add.", "aten::"])
def test_names_that_are_no_operators(name: str) -> None:
    refused(changed(lambda d: node(d, "linear").update(target=name)), f"the operator {name!r} ")


# Symbols and expressions


def test_an_empty_expression() -> None:
    refused(changed(lambda d: d["expressions"].append([])), "starts with its operation")


def test_an_expression_that_comes_later() -> None:
    refused(
        changed(lambda d: d["expressions"].insert(0, ["floordiv", {"symbolic": 5}, 2])),
        "there is no expression 5: the file has 1 before this",
    )


def test_expressions_that_double() -> None:
    """A text of a few lines that stands for a tree of more nodes than atoms in the universe."""

    def double(d: Any) -> None:
        count = len(d["symbols"]) + len(d["expressions"])
        for i in range(200):
            last = {"symbolic": count + i - 1}
            d["expressions"].append(["bitxor", ["floordiv", last, 3][1], {"symbolic": 0}])
            d["expressions"][-1] = ["max", last, {"symbolic": 0}] if i == 0 else ["mod", last, last]

    refused(changed(double), "expressions[")


def test_a_tower_of_powers() -> None:
    def pile(d: Any) -> None:
        count = len(d["symbols"]) + len(d["expressions"])
        d["expressions"].append(["pow", {"symbolic": 0}, {"symbolic": 0}])
        for i in range(5):
            last = {"symbolic": count + i}
            d["expressions"].append(["pow", last, last])

    refused(changed(pile), "an expression with too high a power")


def test_a_huge_exponent() -> None:
    refused(
        changed(lambda d: d["expressions"].append(["pow", {"symbolic": 0}, 10**30])), "is too large"
    )
    refused(
        changed(lambda d: d["expressions"].append(["mul", [[0, 10**9]]])), "is not from 1 to 64"
    )


def more_symbols(document: Any, count: int) -> None:
    """Symbols that nothing uses, after the first ones; expressions are numbered after all."""
    symbols = document["symbols"]
    numbered = len(symbols)

    def shift(value: Any) -> None:
        for item in value.values() if isinstance(value, dict) else value:
            if isinstance(item, (dict, list)):
                shift(item)
        if isinstance(value, dict) and isinstance(value.get("symbolic"), int):
            value["symbolic"] += count * (value["symbolic"] >= numbered)

    shift(document)
    symbols.extend({**symbols[0], "name": f"u{i}"} for i in range(count))


def test_symbols_that_nothing_uses() -> None:
    program = gp.load(io.BytesIO(changed(lambda d: more_symbols(d, 3))))
    x, y = torch.randn(5, 4), torch.randn(5, 1)
    got = program.module()(x, y)
    torch.testing.assert_close(got, gp.load(io.BytesIO(good())).module()(x, y))


@pytest.mark.parametrize("name", ["min", "max"])
@pytest.mark.parametrize(("width", "times"), [(400, 1), (64, 136)], ids=["wide", "many"])
def test_minima_of_many(name: str, width: int, times: int) -> None:
    """They are compared with one another, so that a few kilobytes would take minutes."""

    def add(d: Any) -> None:
        more_symbols(d, width + times)
        for i in range(times):
            operands = [{"symbolic": 1 + i + k} for k in range(width)]
            d["expressions"].append([name, *operands])

    refused(changed(add), "operands")


def test_operands_of_the_wrong_type() -> None:
    refused(
        changed(lambda d: d["expressions"].append(["not", {"symbolic": 0}])),
        "not takes bool, found int",
    )


def test_facts_that_contradict() -> None:
    def contradict(d: Any) -> None:
        number = len(d["symbols"]) + len(d["expressions"])
        d["expressions"] += [["add", [[0, 1]], -70], ["ge0", {"symbolic": number}]]
        about = {"kind": "guard", "internal": False, "message": "", "where": None}
        d["facts"].append({"condition": number + 1, **about})

    refused(changed(contradict), "")


def test_a_range_that_is_nan() -> None:
    refused(
        changed(lambda d: d["symbols"][0].update(lower={"float": "nan"})),
        "not a number (nan) is not allowed here",
    )


def test_an_empty_range() -> None:
    refused(changed(lambda d: d["symbols"][0].update(lower=65)), "batch has no value from 65 to 64")


# Containers


def test_a_container_that_is_not_registered() -> None:
    refused(
        changed(lambda d: d["call"]["outputs"].update(type="registered their.Box", context=None)),
        "no container is registered under the name 'their.Box'",
        "before loading, register it: gp.register_dataclass(..., serialized_type_name='their.Box')",
    )


def test_a_container_that_would_import() -> None:
    name = "registered collections.defaultdict"
    context = {"default_factory_module": "os", "default_factory_name": "system", "dict_context": []}
    pairs = {"dict": [[k, v] for k, v in context.items()]}
    refused(
        changed(lambda d: d["call"]["outputs"].update(type=name, context=pairs)),
        "no container is registered under the name 'collections.defaultdict'",
    )


def test_deeply_nested_containers() -> None:
    def nest(d: Any) -> None:
        tree: Any = None
        for _ in range(200):
            tree = {"type": "list", "items": [tree]}
        d["call"]["outputs"]["items"][0] = tree

    refused(changed(nest), "containers are nested too deeply")


# Tensors


def tensor(change: Callable[[Any], Any]) -> bytes:
    """The good file with another description of the weight."""
    return changed(
        lambda d: change(next(t for t in d["tensors"] if t["storage"] == "linear.weight"))
    )


def test_a_tensor_that_reaches_beyond_its_storage() -> None:
    refused(tensor(lambda t: t.update(offset=1)), "reaches beyond its storage 'linear.weight'")
    refused(tensor(lambda t: t.update(strides=[4, 100])), "reaches beyond its storage")


@pytest.mark.parametrize("sizes", [[1 << 62, 1 << 62], [(1 << 63) - 1, 4]])
def test_huge_sizes(sizes: list[int]) -> None:
    refused(tensor(lambda t: t.update(sizes=sizes, strides=[0, 0])), "has too many elements")


def test_sizes_that_are_no_sizes() -> None:
    refused(tensor(lambda t: t.update(sizes=[-1, 4])), "-1 is not from 0 to")
    refused(tensor(lambda t: t.update(sizes=[1 << 70, 4])), "is not from 0 to")
    refused(tensor(lambda t: t.update(sizes=[True, 4])), "expected an integer")


def test_an_expanded_tensor_larger_than_memory() -> None:
    refused(
        tensor(lambda t: t.update(sizes=[1 << 20, 1 << 20], strides=[0, 0])),
        "an expanded tensor of [1048576, 1048576] is too large",
    )


def test_a_storage_that_is_not_there() -> None:
    refused(tensor(lambda t: t.update(storage="other")), "there is no tensor 'other'")


def header(change: Callable[[Any], Any], tail: bytes = b"") -> bytes:
    document, tensors = unpacked(good())
    (length,) = struct.unpack_from("<Q", tensors)
    rows = json.loads(tensors[8 : 8 + length])
    change(rows)
    text = json.dumps(rows).encode()
    text += b" " * (-(len(text) + 8) % 64)
    return packed(document, struct.pack("<Q", len(text)) + text + tensors[8 + length :] + tail)


def test_tensors_that_overlap() -> None:
    refused(
        header(lambda rows: rows["linear.bias"].update(data_offsets=[48, 64])),
        "overlaps the tensor before it",
    )


def test_tensors_with_a_gap() -> None:
    refused(header(lambda rows: rows.pop("linear.weight")), "leaves a gap to the tensor before it")


def test_tensors_outside_of_the_file() -> None:
    far = {"dtype": "U8", "shape": [1 << 40], "data_offsets": [1 << 20, (1 << 20) + (1 << 40)]}
    refused(header(lambda rows: rows.update(far=far)), "'far' leaves a gap")


def test_tensors_and_more() -> None:
    refused(header(lambda rows: None, tail=b"more"), "but the file has")


def test_a_shape_that_does_not_fit_the_data() -> None:
    refused(
        header(lambda rows: rows["linear.weight"].update(shape=[4, 5])),
        "the data has 64 bytes, but the shape [4, 5] needs 80",
    )


def test_a_header_longer_than_the_file() -> None:
    document, tensors = unpacked(good())
    refused(
        packed(document, struct.pack("<Q", 1 << 62) + tensors[8:]), "the header says that it has"
    )
    refused(packed(document, b"abc"), "the header is missing")


# The parts together


def test_a_signature_of_another_graph() -> None:
    refused(
        changed(lambda d: d["signature"]["inputs"].reverse()), "the inputs are not those of the gr"
    )


def test_a_parameter_without_a_value() -> None:
    def drop(d: Any) -> None:
        d["state_dict"] = [row for row in d["state_dict"] if row[0] != "linear.weight"]

    refused(changed(drop), "'linear.weight' is not a tensor")


def test_an_operator_that_mutates() -> None:
    refused(changed(lambda d: node(d, "add").update(target="aten::add_.Tensor")), "mutates")


def test_a_script_object() -> None:
    refused(
        changed(lambda d: d["signature"]["inputs"][0].update(kind="CUSTOM_OBJ")),
        "an input of the kind CUSTOM_OBJ cannot be read from a file",
    )
