"""Documents of every form, from every kind of source, and what is said about bad ones."""

import copy
import io
import json
import math
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from profiles.cluster import Cluster, Device, Link
from profiles.documents.strict_json import MAX_DOCUMENT_BYTES
from profiles.load import (
    Workload,
    demo_names,
    dump_workload,
    load_cluster,
    load_workload,
    parse_workload,
)
from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile

PROFILE: dict[str, Any] = {
    "name": "net",
    "microbatch_size": 8,
    "layers": [
        {
            "name": name,
            "costs": [{"device_type": "A100", "forward_ns": 10, "input_grad_ns": 8, "weight_grad_ns": 7}],
            "parameter_bytes": 4,
        }
        for name in ("conv", "pool", "head")
    ],
    "edges": [
        {"producer": "conv", "consumer": "pool", "bytes": 5},
        {"producer": "pool", "consumer": "head", "bytes": 6},
    ],
}
CLUSTER: dict[str, Any] = {
    "name": "rig",
    "devices": [{"name": name, "type": "A100", "memory_bytes": 100} for name in "xy"],
    "links": [{"a": "x", "b": "y", "bandwidth_bytes_per_s": 10}],
}
WORKLOAD: dict[str, Any] = {
    "format": "pipeline-workload/2",
    "profile": PROFILE,
    "cluster": CLUSTER,
    "num_microbatches": 6,
    "options": {"receive_buffers": 0},
}
NEUTRAL: dict[str, Any] = {
    "name": "tiny",
    "layers": [{"name": "a", "forward_ms": 1, "backward_ms": 2.5, "param_bytes": 0, "activation_bytes": 7}],
    "edges": [],
    "cluster": {"devices": [{"name": "x", "memory_bytes": 100}], "links": []},
    "microbatches": 3,
}
GRAPH = (
    "node1 -- Linear(2, 2) -- "
    "forward_compute_time=1.0, backward_compute_time=2.0, activation_size=8.0, parameter_size=16.0\n"
)

EXPECTED_PROFILE = ModelProfile(
    name="net",
    microbatch_size=8,
    layers=tuple(
        Layer(
            name=name,
            costs=(LayerCost(device_type="A100", forward_ns=10, input_grad_ns=8, weight_grad_ns=7),),
            parameter_bytes=4,
        )
        for name in ("conv", "pool", "head")
    ),
    edges=(Edge(producer="conv", consumer="pool", bytes=5), Edge(producer="pool", consumer="head", bytes=6)),
)
EXPECTED_CLUSTER = Cluster(
    name="rig",
    devices=tuple(Device(name=name, type="A100", memory_bytes=100) for name in "xy"),
    links=(Link(a="x", b="y", bandwidth_bytes_per_s=10),),
)


def write(folder: Path, document: Any) -> Path:
    path = folder / "document.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
    return path


def refusal_of(document: Any) -> str:
    """The message with which a document (bytes, text or a tree) is refused."""
    text = (
        document
        if isinstance(document, bytes)
        else (document if isinstance(document, str) else json.dumps(document)).encode()
    )
    with pytest.raises(ValueError, match=r"^work: ") as caught:
        parse_workload(text, source="work")
    return str(caught.value)


def changed(change: Callable[[Any], object]) -> dict[str, Any]:
    """The workload document after `change` has been at it."""
    tree = copy.deepcopy(WORKLOAD)
    change(tree)
    return tree


def first_cost(tree: Any) -> dict[str, Any]:
    cost: dict[str, Any] = tree["profile"]["layers"][0]["costs"][0]
    return cost


# ---------------------------------------------------------------- forms


def test_workload_document(tmp_path: Path):
    """Tests that our own form yields profile, cluster, microbatches and options."""
    workload = load_workload(write(tmp_path, WORKLOAD))
    assert workload == Workload(
        profile=EXPECTED_PROFILE, cluster=EXPECTED_CLUSTER, num_microbatches=6, options={"receive_buffers": 0}
    )


def test_bare_profile(tmp_path: Path):
    """Tests that a profile document is a workload without a cluster."""
    path = write(tmp_path, {"format": "pipeline-profile/2", **PROFILE})
    assert load_workload(path).profile == EXPECTED_PROFILE
    assert load_workload(path) == Workload(profile=EXPECTED_PROFILE)


def test_bare_cluster(tmp_path: Path):
    """Tests that a cluster document is read as a cluster."""
    assert load_cluster(write(tmp_path, {"format": "pipeline-cluster/1", **CLUSTER})) == EXPECTED_CLUSTER


def test_parts_of_a_workload(tmp_path: Path):
    """Tests that profile and cluster can each be taken out of a workload document."""
    path = str(write(tmp_path, WORKLOAD))
    assert load_workload(path).profile == EXPECTED_PROFILE
    assert load_cluster(path) == EXPECTED_CLUSTER


def test_neutral_form(tmp_path: Path):
    """Tests that the neutral form is known by its layers with forward_ms."""
    workload = load_workload(write(tmp_path, NEUTRAL))
    assert workload.profile.layers[0].costs[0].input_grad_ns == 2_500_000
    assert workload.num_microbatches == 3
    assert load_cluster(write(tmp_path, NEUTRAL)).devices[0].type == "reference"


def test_graph_txt(tmp_path: Path):
    """Tests that PipeDream's graph.txt is known by its first line."""
    assert load_workload(write(tmp_path, "\n" + GRAPH)).profile.layers[0].costs[0].forward_ns == 1_000_000


# ---------------------------------------------------------------- sources


def test_standard_input(monkeypatch: pytest.MonkeyPatch):
    """Tests that `-` reads standard input, and that messages call it <stdin>."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(WORKLOAD).encode())))
    assert load_workload("-").profile == EXPECTED_PROFILE
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"nonsense")))
    with pytest.raises(ValueError, match=r"^<stdin>: line 1, column 1: not JSON"):
        load_workload("-")


def test_unknown_demo_lists_the_known_ones():
    """Tests that a misspelt demo gets the right spelling, and any other name the whole list."""
    with pytest.raises(ValueError, match=r"^demo:alexnet-2-gpus: no such demo; did you mean demo:alexnet-two-gpus\?$"):
        load_workload("demo:alexnet-2-gpus")
    with pytest.raises(ValueError, match=r"^demo:x: no such demo; choose one of ") as caught:
        load_workload("demo:x")
    assert ", ".join(demo_names()) in str(caught.value)


@pytest.mark.parametrize("name", ["", "../samples/alexnet-two-gpus", "__init__", "README", "ALEXNET-TWO-GPUS", "\0"])
def test_demo_is_no_way_into_the_file_system(name: str):
    """Tests that only the listed names are demos."""
    with pytest.raises(ValueError, match=r"no such demo; (?:did you mean demo:|choose one of alexnet-two-gpus, )"):
        load_workload(f"demo:{name}")


@pytest.mark.parametrize("load", [load_workload, load_cluster])
def test_missing_file(load: Callable[[Path], object], tmp_path: Path):
    """Tests that a missing file is one clear ValueError, whatever was wanted from it."""
    with pytest.raises(
        ValueError, match=r"nothing\.json: cannot be read \(No such file or directory\); give a file, demo:NAME"
    ):
        load(tmp_path / "nothing.json")


def test_directory(tmp_path: Path):
    """Tests that a directory is refused by name."""
    with pytest.raises(ValueError, match=r"cannot be read \(Is a directory\)"):
        load_workload(tmp_path)


def test_path_with_a_nul():
    """Tests that a NUL in a path does not escape as a bare error."""
    with pytest.raises(ValueError, match=r'^"a\\u0000b": is not a path; give a file'):
        load_workload("a\0b")


def test_file_of_more_than_64_mib(tmp_path: Path):
    """Tests that a file beyond the limit is refused without being parsed."""
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(MAX_DOCUMENT_BYTES + 1)
    with pytest.raises(ValueError, match="holds more than 67,108,864 bytes; merge layers"):
        load_workload(path)


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="needs a device that never ends")
def test_source_that_never_ends():
    """Tests that reading stops at the limit."""
    with pytest.raises(ValueError, match="holds more than 67,108,864 bytes"):
        load_workload("/dev/zero")


def test_cluster_where_a_workload_is_wanted():
    """Tests that a cluster given as a workload says where it belongs."""
    assert "states only a cluster; give a profile or a workload" in refusal_of(
        {"format": "pipeline-cluster/1", **CLUSTER}
    )


def test_profile_where_a_cluster_is_wanted(tmp_path: Path):
    """Tests that a profile given as a cluster says what is missing."""
    path = write(tmp_path, {"format": "pipeline-profile/2", **PROFILE})
    with pytest.raises(ValueError, match=r"document\.json: states no cluster; give a pipeline-cluster/1 document"):
        load_cluster(path)


# ---------------------------------------------------------------- bad documents

BAD: list[tuple[str, dict[str, Any], str]] = [
    (
        "missing field",
        changed(lambda tree: first_cost(tree).pop("forward_ns")),
        "work: profile.layers[0].costs[0].forward_ns is missing; add it, in whole nanoseconds (1 ms = 1,000,000)",
    ),
    (
        "wrong unit",
        changed(lambda tree: first_cost(tree).update(forward_ms=1.5)),
        "work: profile.layers[0].costs[0].forward_ms = 1.5 is not a known field; "
        "did you mean forward_ns, in whole nanoseconds (1 ms = 1,000,000)?",
    ),
    (
        "float nanoseconds",
        changed(lambda tree: first_cost(tree).update(forward_ns=10.0)),
        "work: profile.layers[0].costs[0].forward_ns = 10.0 is not an integer; "
        "give whole nanoseconds (1 ms = 1,000,000)",
    ),
    (
        "quoted number",
        changed(lambda tree: first_cost(tree).update(forward_ns="10")),
        'work: profile.layers[0].costs[0].forward_ns = "10" is not an integer; '
        "give whole nanoseconds (1 ms = 1,000,000)",
    ),
    (
        "null",
        changed(lambda tree: tree["cluster"]["devices"][1].update(memory_bytes=None)),
        "work: cluster.devices[1].memory_bytes = null is not an integer; give whole bytes",
    ),
    (
        "bool for a number",
        changed(lambda tree: tree.update(num_microbatches=True)),
        "work: num_microbatches = true is not an integer; give a whole number",
    ),
    (
        "number for a bool",
        changed(lambda tree: tree["profile"]["layers"][2].update(frozen=1)),
        "work: profile.layers[2].frozen = 1 is neither true nor false; give one of them, without quotes",
    ),
    (
        "number for a name",
        changed(lambda tree: tree["profile"].update(name=5)),
        "work: profile.name = 5 is not a string; put it in double quotes",
    ),
    (
        "object for a list",
        changed(lambda tree: tree["profile"].update(edges={"a": "b"})),
        "work: profile.edges = {1 fields} is not a list; give [...]",
    ),
    (
        "list for an object",
        changed(lambda tree: tree.update(profile=[1, 2])),
        "work: profile = [2 entries] is not an object; give {...}",
    ),
    (
        "list for options",
        changed(lambda tree: tree.update(options=[])),
        "work: options = [0 entries] is not an object; give {...}",
    ),
    (
        "negative time",
        changed(lambda tree: first_cost(tree).update(forward_ns=-3)),
        "work: profile.layers[0].costs[0].forward_ns: cost on 'A100': forward_ns = -3 is out of range; "
        "give an integer from 0 to 10000000000000",
    ),
    (
        "time of 2**63",
        changed(lambda tree: first_cost(tree).update(forward_ns=2**63)),
        "work: profile.layers[0].costs[0].forward_ns: cost on 'A100': forward_ns = 9223372036854775808 "
        "is out of range; give an integer from 0 to 10000000000000",
    ),
    (
        "misspelt field",
        changed(lambda tree: tree["profile"]["layers"][1].update(paramter_bytes=4)),
        "work: profile.layers[1].paramter_bytes = 4 is not a known field; "
        "did you mean parameter_bytes, in whole bytes?",
    ),
    (
        "field of no meaning",
        changed(lambda tree: tree.update(zzz="x" * 100)),
        f'work: zzz = "{"x" * 56}... is not a known field; '
        "remove it, or use one of: profile, cluster, num_microbatches, global_batch_size, "
        "microbatch_sizes, microbatches, options",
    ),
    (
        "unit of a link",
        changed(lambda tree: tree["cluster"]["links"][0].update(latency_us=3)),
        "work: cluster.links[0].latency_us = 3 is not a known field; "
        "did you mean latency_ns, in whole nanoseconds (1 ms = 1,000,000)?",
    ),
    (
        "unknown device",
        changed(lambda tree: tree["cluster"]["links"][0].update(b="gpu7")),
        "work: cluster: cluster 'rig': links[0] ends at 'gpu7', which is not a device, host or switch; add it to "
        "devices or switches, or correct the name",
    ),
    (
        "disconnected cluster",
        changed(lambda tree: tree["cluster"].update(links=[])),
        "work: cluster: cluster 'rig': no route from device 'x' to device 'y'; "
        "add the missing link, or remove the devices that cannot be reached",
    ),
    (
        "cycle",
        changed(lambda tree: tree["profile"]["edges"].append({"producer": "head", "consumer": "conv", "bytes": 1})),
        "work: profile: profile 'net': the edges form a cycle: pool -> head -> conv -> pool; remove one of them",
    ),
    (
        "no microbatches",
        changed(lambda tree: tree.update(num_microbatches=0)),
        "work: num_microbatches: workload: num_microbatches = 0 is out of range; give an integer from 1 to 1073741824",
    ),
    (
        "no profile",
        changed(lambda tree: tree.pop("profile")),
        "work: profile is missing; add it",
    ),
    (
        "unknown format",
        changed(lambda tree: tree.update(format="pipeline-plan/1")),
        'work: format = "pipeline-plan/1" is not supported here; '
        "give one of pipeline-workload/2, pipeline-profile/2, pipeline-cluster/1",
    ),
    (
        "no format",
        changed(lambda tree: tree.pop("format")),
        "work: format is missing; give one of pipeline-workload/2, pipeline-profile/2, pipeline-cluster/1, "
        "or the neutral form (layers with forward_ms)",
    ),
]


@pytest.mark.parametrize(("tree", "message"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_message(tree: dict[str, Any], message: str):
    """Tests that a bad document is refused with file, path, value and remedy, word for word."""
    assert refusal_of(tree) == message


def test_several_problems_have_a_line_each():
    """Tests that the problems of one entry are all told, each with the file in front."""
    tree = changed(lambda tree: (first_cost(tree).pop("forward_ns"), first_cost(tree).update(forward_ms=1)))
    lines = refusal_of(tree).splitlines()
    assert [line.partition(" = ")[0].partition(" is ")[0] for line in lines] == [
        "work: profile.layers[0].costs[0].forward_ns",
        "work: profile.layers[0].costs[0].forward_ms",
    ]


def test_only_the_first_problems_are_told():
    """Tests that after five problems the others are counted."""
    lines = refusal_of(
        changed(lambda tree: tree.update({f"field{number}": number for number in range(9)}))
    ).splitlines()
    assert len(lines) == 6
    assert lines[-1] == "work: ... and 4 more"


def test_what_is_wrong_a_million_times_is_told_once():
    """Tests that a list of nothing but mistakes is refused quickly and briefly."""
    document = json.dumps(changed(lambda tree: tree["profile"].update(layers=[{}]))).replace(
        "[{}]", f"[{'{},' * 300_000}{{}}]"
    )
    started = time.process_time()
    message = refusal_of(document)
    assert time.process_time() - started < 5
    assert message.startswith("work: profile.layers[0].name is missing")
    assert len(message.splitlines()) == 2


def test_odd_keys_are_quoted_in_paths():
    """Tests that a key that is no plain word appears as JSON, cut short."""
    message = refusal_of(changed(lambda tree: tree["profile"].update({"\x1b[2J": 1, "é" * 99: 2})))
    assert 'work: profile["\\u001b[2J"] = 1 is not a known field' in message
    assert message.isascii()
    assert len(message) < 700


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 1, column 2: not JSON"),
        (
            '{"format": "pipeline-workload/2",\n  "profile": }',
            "line 2, column 14: not JSON (Expecting value); correct the text there",
        ),
        ("[1]", "the document = [1 entries] is not an object; give {...}"),
        ('"text"', 'the document = "text" is not an object; give {...}'),
        ("name: net\nlayers:\n", "line 1, column 1: not JSON"),
    ],
)
def test_text_that_is_no_document(text: str, message: str):
    """Tests that a text which is not a JSON object is refused with its place or its kind."""
    assert message in refusal_of(text)


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_words_for_numbers(word: str):
    """Tests that NaN and the infinities are refused by their path."""
    message = refusal_of(json.dumps(WORKLOAD).replace('"forward_ns": 10', f'"forward_ns": {word}', 1))
    assert message == (
        f"work: profile.layers[0].costs[0].forward_ns = {word} is not a number in JSON; "
        "give a finite number, or leave the field out"
    )


@pytest.mark.parametrize(
    ("number", "problem"),
    [
        ("1e400", "= 1e400 is too large; give a finite number"),
        ("-1e999999999999", "= -1e999999999999 is too large; give a finite number"),
        ("-0.0", "= -0.0 is not an integer; give whole nanoseconds"),
        ("1e3", "= 1000.0 is not an integer; give whole nanoseconds"),
        ("9" * 5000, f"= {'9' * 20}... has 5000 digits; give a number of a sensible size"),
        ("-" + "9" * 100, f"= -{'9' * 19}... has 100 digits; give a number of a sensible size"),
        ("9" * 40, f"cost on 'A100': forward_ns = {'9' * 40} is out of range; give an integer from 0 to"),
    ],
)
def test_numbers_beyond_reason(number: str, problem: str):
    """Tests that numbers which no machine word holds are refused by their path."""
    message = refusal_of(json.dumps(WORKLOAD).replace('"forward_ns": 10', f'"forward_ns": {number}', 1))
    assert message.startswith("work: profile.layers[0].costs[0].forward_ns")
    assert problem in message
    assert len(message) < 250


def test_repeated_key():
    """Tests that an object which states a key twice is refused by the object's path."""
    message = refusal_of(json.dumps(WORKLOAD).replace('"forward_ns": 10', '"forward_ns": 10, "forward_ns": 11', 1))
    assert message == 'work: profile.layers[0].costs[0] has the key "forward_ns" twice; keep one of them'


def test_half_characters_and_nuls():
    """Tests that lone surrogates and NULs are refused by path, in values and in keys."""
    in_value = json.dumps(changed(lambda tree: tree["profile"]["layers"][1].update(name="a\ud800")))
    in_prose = changed(lambda tree: tree["profile"].update(provenance="a\0b"))
    in_key = changed(lambda tree: tree["options"].update({"\udfff": 1}))
    assert 'profile.layers[1].name = "a\\ud800" holds half a character' in refusal_of(in_value)
    assert 'profile.provenance = "a\\u0000b" holds half a character (a lone surrogate) or a NUL' in refusal_of(in_prose)
    assert 'options has the unreadable key "\\udfff"; rename it' in refusal_of(in_key)


@pytest.mark.parametrize("depth", [150, 250, 900, 100_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_nesting(depth: int, opening: str, closing: str):
    """Tests that deep nesting is refused, not followed."""
    nested = opening * depth + "1" + closing * depth
    text = json.dumps(WORKLOAD).replace('"receive_buffers": 0', f'"receive_buffers": {nested}')
    if depth == 150:
        assert math.isclose(
            len(json.dumps(parse_workload(text.encode(), source="work").options)), len(nested), rel_tol=0.5
        )
    else:
        assert refusal_of(text) == "work: is nested too deeply; no document needs more than ten levels"


def test_objects_without_end():
    """Tests that an object of a thousand and one fields is refused before it is looked at."""
    message = refusal_of(changed(lambda tree: tree.update(options={f"o{number}": 0 for number in range(1001)})))
    assert message == "work: options has 1001 fields, more than 1,000; remove those that mean nothing"


def test_documents_without_end():
    """Tests that a document of a million values is refused before it is parsed."""
    assert refusal_of("[" + "0," * 1_000_000 + "0]").startswith("work: holds more than 1,000,000 values; merge layers")


def test_loading_is_quick(tmp_path: Path):
    """Tests that a workload of 346 layers on three types loads in a fraction of a second (14 ms on an idle core)."""
    path = tmp_path / "big.json"
    path.write_text(dump_workload(load_workload("demo:resnet101-mixed-gpus")), encoding="utf-8")
    load_workload(path)
    times = []
    for _ in range(5):
        started = time.process_time()
        load_workload(path)
        times.append(time.process_time() - started)
    assert min(times) < 0.2


def test_every_problem_has_a_remedy():
    """Tests that every message of this file's table has a remedy behind a semicolon."""
    assert all(re.search(r"; (add|did|give|correct|put|remove|set)", message) for _, _, message in BAD)


@pytest.mark.parametrize(
    ("form", "place"), [("pipeline-workload/2", "profile.microbatch_size"), ("pipeline-profile/2", "microbatch_size")]
)
def test_a_profile_states_its_samples(form: str, place: str):
    """Tests that a document of version 2 without the size of a microbatch is refused, and null is read as unknown."""
    profile = {key: value for key, value in PROFILE.items() if key != "microbatch_size"}
    whole = form.startswith("pipeline-workload")
    document = {"format": form, "profile": profile} if whole else {"format": form, **profile}
    assert f"{place} is missing; state the samples of a microbatch, or null" in refusal_of(document)
    unknown = profile | {"microbatch_size": None}
    document = {"format": form, "profile": unknown} if whole else {"format": form, **unknown}
    assert parse_workload(json.dumps(document).encode(), source="work").profile.microbatch_size is None


def test_version_1_may_leave_the_samples_out():
    """Tests that an older document without the size is of unknown size, or of 1 where its costs state sizes."""
    profile = {key: value for key, value in PROFILE.items() if key != "microbatch_size"}
    old = {"format": "pipeline-workload/1", "profile": profile}
    found = parse_workload(json.dumps(old).encode(), source="work").profile
    assert (found.microbatch_size, found.scales_linearly) == (None, True)
    sized = copy.deepcopy(old)
    sized["profile"]["layers"][0]["costs"].append({**PROFILE["layers"][0]["costs"][0], "microbatch_size": 2})
    found = parse_workload(json.dumps(sized).encode(), source="work").profile
    assert (found.microbatch_size, found.scales_linearly) == (1, False)
