"""Sailor's files, figure by figure: every expected number was worked out by hand."""

import copy
import json
from typing import Any

import pytest

from profiles.importers.sailor import read_sailor
from profiles.model_profile import Edge, LayerCost, WidthBytes

TIMES: dict[str, Any] = {
    "1": {"1": {"0": [0.001, 0.002, 0.003], "1": [0.002, 0.004, 0.003]}},
    "2": {
        "1": {"0": [0.0015, 0.003, 0.004], "1": [0.003, 0.006, 0.004]},
        "2": {"0": [0.0008, 0.0016, 0.002], "1": [0.0016, 0.0032, 0.002]},
        "8": {"0": [0.1, 0.1, 0.1], "1": [0.1, 0.1, 0.1]},
    },
}

FLOATS: dict[str, Any] = {
    "1": {
        "0": {"params_floats": 100, "act_output_floats": 10, "act_mem_floats": 40, "params_bytes": 400},
        "1": {"params_floats": 0, "act_output_floats": 7, "act_mem_floats": 30},
    },
    "2": {
        "0": {"params_floats": 50, "act_output_floats": 10, "act_mem_floats": 25},
        "1": {"params_floats": 0, "act_output_floats": 7, "act_mem_floats": 20},
    },
}


def files(times: Any = TIMES, floats: Any = FLOATS) -> dict[str, bytes]:
    info = {"OPT": floats, "other": {}}
    return {
        "profiles/OPT/A100/profile.json": json.dumps(times).encode(),
        "profiles/OPT/V100/profile.json": json.dumps(times).encode(),
        "llm_info.json": json.dumps(info).encode(),
    }


def test_every_figure():
    """Tests that seconds and floats become nanoseconds and bytes, and that degrees without bytes are left out."""
    profile = read_sailor(files()).profile
    first, second = profile.layers
    assert (profile.name, profile.microbatch_size, profile.scaling) == ("OPT", 1, "linear")
    assert (first.parameter_bytes, first.state_bytes, first.optimizer_bytes, first.stash_bytes) == (400, 2400, 800, 160)
    assert [(cost.width, cost.microbatch_size) for cost in first.costs] == [(1, 1), (1, 2), (2, 2)] * 2
    assert first.costs[0] == LayerCost(
        device_type="A100",
        microbatch_size=1,
        forward_ns=1_000_000,
        input_grad_ns=1_000_000,
        weight_grad_ns=1_000_000,
        optimizer_ns=4_000_000,
    )
    assert (second.costs[0].input_grad_ns, second.costs[0].weight_grad_ns, second.costs[0].optimizer_ns) == (
        4 * 10**6,
        0,
        0,
    )
    assert first.wider == (
        WidthBytes(
            width=2,
            state_bytes=1200,
            stash_bytes=100,
            weight_stash_bytes=100,
            parameter_bytes=200,
            gradient_bytes=200,
            optimizer_bytes=400,
        ),
    )
    assert profile.edges == (Edge(producer="layer 0", consumer="layer 1", bytes=40),)


def test_what_is_missing_is_named():
    """Tests that a layer without times, a degree without floats and a model without figures are refused by name."""
    times, floats = copy.deepcopy(TIMES), copy.deepcopy(FLOATS)
    del times["2"]["1"]["1"]
    with pytest.raises(ValueError, match="A100, 2 samples, degree 1: layer 1 has no times"):
        read_sailor(files(times))
    del floats["2"]["1"]["act_mem_floats"]
    with pytest.raises(ValueError, match="degree 2: layer 1 lacks its floats"):
        read_sailor(files(floats=floats))
    with pytest.raises(ValueError, match='states nothing of "OPT" at degree 1'):
        read_sailor(files(floats={}))


def test_files_are_told_apart_by_their_paths():
    """Tests that one model's profiles and one llm_info.json are asked for."""
    with pytest.raises(ValueError, match=r"one llm_info\.json"):
        read_sailor({"OPT/A100/profile.json": b"{}"})
    with pytest.raises(ValueError, match="is not in folders"):
        read_sailor({"profile.json": b"{}", "llm_info.json": b"{}"})
    with pytest.raises(ValueError, match="give one model's"):
        read_sailor({**files(), "profiles/GPT/A100/profile.json": b"{}"})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda times, floats: times["1"]["1"].update({"2": [0.1, 0.2, 0.3]}), "layer 2 has times, but no floats"),
        (lambda times, floats: floats["1"].update(head=floats["1"]["0"]), '"head" is no number of a degree or layer'),
        (lambda times, floats: floats.update(x=floats["1"]), '"x" is no number of a degree or layer of OPT'),
        (lambda times, floats: floats["1"].update({"-1": floats["1"]["0"]}), '"-1" is no number'),
    ],
)
def test_layers_that_only_one_file_has_are_named(change: Any, words: str):
    """Tests that a layer with times alone is not left out in silence, and that keys are numbers."""
    times, floats = copy.deepcopy(TIMES), copy.deepcopy(FLOATS)
    change(times, floats)
    with pytest.raises(ValueError, match=words):
        read_sailor(files(times, floats))
