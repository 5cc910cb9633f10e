"""The demos: all of them load, fit together, and hold the figures stated here."""

import json
from importlib import resources
from pathlib import Path

import pytest

from planner.problem import Options, Problem
from profiles.documents.validation import validate
from profiles.load import Workload, demo_names, dump_workload, load_workload

# layers, edges, devices, microbatches, forward, backward (ns), of which weight gradient, parameters, stash (bytes)
FIGURES = {
    "alexnet-two-gpus": (22, 22, 2, 4, 44_801_000, 40_520_000, 18_116_500, 244_403_360, 1_124_573_188),
    "bert24-six-accelerators": (32, 55, 6, 12, 92_406_000, 125_407_000, 62_703_500, 1_594_940_672, 229_883_920),
    "bert32-a100": (37, 67, 8, 32, 324_287_998, 648_576_002, 324_287_998, 5_879_481_600, 19_457_540_096),
    "bert32-widths": (37, 67, 8, 32, 324_287_998, 648_576_002, 324_287_992, 5_879_481_600, 19_457_540_096),
    "gnmt8-four-gpus": (37, 46, 4, 8, 33_533_000, 55_883_000, 27_445_000, 775_063_808, 402_081_792),
    "gpt-1.5b-zero-bubble": (24, 23, 8, 24, 148_176_000, 219_384_000, 74_695_992, 3_057_647_616, 29_670_506_496),
    "gpt-6.2b-zero-bubble": (32, 31, 8, 24, 237_744_000, 394_968_000, 159_416_000, 12_884_901_888, 29_796_335_616),
    "gpt2-two-processes": (8, 7, 2, 8, 40_786_726, 60_290_474, 29_493_959, 27_377_664, 24_571_140),
    "llama3-8b-h200": (34, 33, 8, 16, 476_326_673, 916_852_672, 351_008_881, 16_060_522_496, 103_528_333_826),
    "resnet101-mixed-gpus": (346, 379, 6, 16, 197_306_000, 213_786_000, 94_100_500, 178_196_640, 14_419_879_940),
    "resnet50-two-hosts": (176, 192, 8, 16, 182_488_000, 260_931_000, 114_537_000, 102_228_128, 19_231_657_988),
    "resnext50-tight-memory": (176, 192, 4, 16, 221_803_000, 368_990_000, 165_852_500, 100_115_616, 24_279_764_996),
    "vgg16-ethernet": (40, 40, 4, 8, 233_902_000, 438_633_000, 202_321_000, 553_430_176, 14_682_148_868),
}
ESTIMATES = {
    "lora-13b-estimate": (42, 41, 4, 16, 997_934_011, 536_870_925, 954_440, 13_369_344_000, 5_615_124_480),
    "two-towers-estimate": (51, 50, 6, 24, 258_043_695, 516_059_439, 242_771_487, 3_298_820_096, 10_927_792_128),
    "vocabulary-256k-estimate": (20, 19, 8, 32, 193_511_485, 386_994_989, 182_516_365, 6_060_769_280, 7_730_118_656),
}
"""The same for those that were not measured; their type is that of the data sheet."""
SAMPLES = resources.files("profiles.samples")


def load_problem(name: str) -> Problem:
    workload = load_workload(f"demo:{name}")
    assert workload.cluster is not None
    assert workload.num_microbatches is not None
    options = validate(Options, workload.options, source=name)
    return Problem(
        profile=workload.profile, cluster=workload.cluster, num_microbatches=workload.num_microbatches, options=options
    )


def test_every_demo_has_its_figures_stated():
    """Tests that the table above and the folder name the same demos."""
    assert sorted({**FIGURES, **ESTIMATES}) == list(demo_names())


@pytest.mark.parametrize("name", {**FIGURES, **ESTIMATES})
def test_figures(name: str):
    """Tests that counts, and sums over all layers on the reference device, are as stated."""
    problem = load_problem(name)
    profile, cluster = problem.profile, problem.cluster
    costs = [layer.costs[0] for layer in profile.layers]
    types = dict.fromkeys(ESTIMATES, "A10") | {"llama3-8b-h200": "NVIDIA H200"}
    assert {cost.device_type for cost in costs} == {types.get(name, "reference")}
    assert {**FIGURES, **ESTIMATES}[name] == (
        len(profile.layers),
        len(profile.edges),
        len(cluster.devices),
        problem.num_microbatches,
        sum(cost.forward_ns for cost in costs),
        sum(cost.fused_backward_ns for cost in costs),
        sum(cost.weight_grad_ns for cost in costs),
        sum(layer.parameter_bytes for layer in profile.layers),
        sum(layer.stash_bytes for layer in profile.layers),
    )


def test_readme_names_every_demo():
    """Tests that the samples' README says of each demo why it is here."""
    rows = [row for row in (SAMPLES / "README.md").read_text(encoding="utf-8").splitlines() if row.startswith("| `")]
    named = [name.strip("` ") for row in rows for name in row.split("|")[1].split(",")]
    assert sorted(named) == list(demo_names())


@pytest.mark.parametrize("name", {**FIGURES, **ESTIMATES})
def test_document_is_as_we_would_write_it(name: str):
    """Tests that import then export is the identity on every sample, and that none is large."""
    text = (SAMPLES / f"{name}.json").read_text(encoding="utf-8")
    assert dump_workload(load_workload(f"demo:{name}")) == text
    assert len(text) < 400_000


@pytest.mark.parametrize("name", FIGURES)
def test_provenance(name: str):
    """Tests that every sample tells its source and licence, or that it was measured here."""
    provenance = load_workload(f"demo:{name}").profile.provenance
    assert provenance.startswith("Source: ")
    licences = "(MIT)", "BSD-style licence", "Source: measured by pipeplan profile of "
    assert any(licence in provenance for licence in licences)


def test_what_the_demos_are_for():
    """Tests that there are a chain, DAGs, unlike devices, activation budgets, and a stash beyond one device."""
    problems = {name: load_problem(name) for name in FIGURES}
    assert {name for name, problem in problems.items() if problem.profile.is_chain} == {
        "gpt-1.5b-zero-bubble",
        "gpt-6.2b-zero-bubble",
        "gpt2-two-processes",
        "llama3-8b-h200",
    }
    assert problems["resnet101-mixed-gpus"].cluster.device_types == ("reference", "reference/0.68", "reference/0.52")
    assert problems["gpt-1.5b-zero-bubble"].options.receive_buffers == 0
    tight = problems["resnext50-tight-memory"]
    assert sum(layer.stash_bytes for layer in tight.profile.layers) > tight.cluster.devices[0].memory_bytes


def test_widths_of_the_bert():
    """Tests that an inner layer takes 30.492 ms on one device and 9.396 ms on eight, and recomputes for 10.193 ms."""
    problem = load_problem("bert32-widths")
    layer = problem.profile.by_name["3:ParallelTransformerLayer"]
    total = {c.width: c.forward_ns + c.fused_backward_ns for c in layer.costs}
    assert total == {1: 30_492_000, 2: 18_696_000, 4: 11_928_000, 8: 9_396_000}
    assert layer.costs[0].recompute_ns == 10_193_000
    assert (layer.stash_bytes, layer.checkpoint_bytes) == (606_478_336, 48_234_496)
    assert [entry.parameter_bytes for entry in layer.wider] == [88_510_080, 44_266_560, 22_144_800]
    assert (problem.options.max_width, problem.options.recompute) == (8, True)


def test_speeds_of_the_mixed_cluster():
    """Tests that ResNet-101's first layer takes 6.396 ms and 2.341 ms, over 1, 0.68 and 0.52."""
    costs = load_problem("resnet101-mixed-gpus").profile.layers[0].costs
    assert [cost.forward_ns for cost in costs] == [6_396_000, 9_405_882, 12_300_000]
    assert [cost.input_grad_ns for cost in costs] == [1_170_500, 1_721_324, 2_250_962]


def test_samples_are_plain_json(repository_root: Path):
    """Tests that other programs can read the samples: one JSON object each, no path of a machine in it."""
    for path in (repository_root / "profiles" / "samples").glob("*.json"):
        text = path.read_text(encoding="utf-8")
        assert json.loads(text)["format"] == "pipeline-workload/2"
        assert "shared/" not in text


def test_workloads_compare_by_value():
    """Tests that loading a demo twice gives equal workloads."""
    first: Workload = load_workload("demo:vgg16-ethernet")
    assert first == load_workload("demo:vgg16-ethernet")
