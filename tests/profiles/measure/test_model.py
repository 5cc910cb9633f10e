"""Real measurements of tiny models: what `pipeplan profile` finds, and what it refuses."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api.inputs import make_problem
from api.profiling import shares
from planner.layout.costs import CostModel
from planner.plan import Stage
from profiles.cluster import Cluster, Device
from profiles.estimates.operations import CausalAttention, Product
from profiles.importers.aiconfigurator.default_rates import default_rates_of
from profiles.load import load_workload
from tests.integration.forked_ranks import Rank, one_thread, run_alone, run_forked
from tests.long_runs import long_only, shortened

WORKER = Path(__file__).parents[2] / "integration/measure_worker.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the worker wrote its documents and `answers.json`."""
    place = tmp_path_factory.mktemp("measured")
    run_alone(str(WORKER), str(place), timeout_s=600)
    return place


@pytest.fixture(scope="module")
def answers(folder: Path) -> Any:
    """What the worker found."""
    return json.loads((folder / "answers.json").read_text())


@pytest.mark.parametrize("phase", ["F", "I + W", "B"])
def test_layers_add_up_to_the_model(answers: Any, phase: str):
    """Tests that forward and backward of the layers, one by one, take together what the whole model takes."""
    assert 0.6 < answers["sums"][phase] < 1.7


def test_recomputation_adds_about_a_forward(answers: Any):
    """Tests that a backward with recomputation costs a backward and a forward, give or take the hooks."""
    assert 0.6 < answers["sums"]["R"] < 2.5


def test_products_split_as_they_should(answers: Any):
    """Tests that I and W of one matrix product cost about a forward each, B both, and that its input is saved."""
    ratios = answers["linear"]
    assert 0.4 < ratios["I"] < 2.5
    assert 0.4 < ratios["W"] < 2.5
    assert 1.2 < ratios["B"] < 4
    assert ratios["R"] > ratios["B"]
    assert ratios["saved"] == 256 * 256 * 4


def test_bytes_are_the_same_on_fake_tensors(answers: Any):
    """Tests that stash, weight stash, state and parameters of every family are equal on real and on fake tensors."""
    assert len(answers["real_and_fake"]) >= shortened(4, whole=5)
    assert {name: differing for name, differing in answers["real_and_fake"].items() if differing} == {}


PUBLISHED = {
    "gpt": 124.4 + 38.6,
    "gpt:layers=48,width=1600,heads=25": 1557.6 + 80.4,
    "llama": 8030.3,
    "llama:layers=80,width=8192,heads=64,inner=28672": 70553.7,
    "vit": 86.6,
    "vit:layers=24,width=1024,heads=16": 304.3,
    "resnet": 25.56,
    "resnet:layers=152": 60.19,
}
"""Millions; heads that are tied in the original count apart here."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_families_have_the_published_size(answers: Any, name: str):
    """Tests that each family has, to 1 %, as many parameters as its original."""
    assert answers["parameters"][name] / 1e6 == pytest.approx(PUBLISHED[name], rel=0.01)


def test_a_killed_run_goes_on(answers: Any):
    """Tests that what was measured before a SIGKILL is not measured again, a line cut short aside."""
    resumed = answers["resumed"]
    assert resumed["kept"] >= 3
    assert resumed["how"][: resumed["kept"]] == ["known"] * resumed["kept"]
    assert set(resumed["how"][resumed["kept"] :]) <= {"measured", "alike"}
    assert set(resumed["again"]) == {"known"}


def test_layers_that_are_alike_are_measured_once(answers: Any):
    """Tests that identical blocks are measured once, or one by one if that is asked for."""
    assert answers["alike"]["False"] == ["measured", "measured", "alike", "alike", "measured"]
    assert answers["alike"]["True"] == ["measured"] * 5


def test_layers_that_do_not_fit_are_estimated(answers: Any):
    """Tests that a layer which needs more than the device has is estimated, and says how much it needs."""
    assert answers["limits"]["embedding"] == ""
    assert "and 1,000,000 are free" in answers["limits"]["block0"]


def test_widths_are_measured_apart(answers: Any):
    """Tests that each layer has times for one thread and for two."""
    assert {(name, width) for name, width, _ in answers["widths"]} == {
        (name, width) for name in ("embedding", "block0", "head") for width in (1, 2)
    }
    assert all(time > 0 for _, _, time in answers["widths"])


def test_a_traced_module_is_cut_where_children_are_called(answers: Any):
    """Tests that a module which is not sequential becomes layers with skips that compute what it computes."""
    assert answers["cut"]["is_equal"] is True
    assert answers["cut"]["takes"]["rest.1"] == ["first", "rest.0"]


def test_a_training_becomes_a_workload(folder: Path, answers: Any):
    """Tests that frozen, plain and skipped-to layers are right in the document of a Training of the executor's."""
    assert answers["commands"]["training"] == [0, "", ""]
    workload = load_workload(folder / "training.json")
    layers = workload.profile.by_name
    assert list(layers) == ["frozen", "trained", "plain", "join"]
    assert layers["frozen"].frozen
    frozen = layers["frozen"].costs[0]
    assert (frozen.input_grad_ns, frozen.weight_grad_ns, layers["frozen"].stash_bytes) == (0, 0, 0)
    assert layers["plain"].costs[0].weight_grad_ns == 0 < layers["plain"].costs[0].input_grad_ns
    assert layers["trained"].costs[0].weight_grad_ns > 0
    assert layers["trained"].state_bytes == 3 * layers["trained"].parameter_bytes == 3 * 4 * (8 * 8 + 8)
    assert layers["trained"].weight_stash_bytes == 2 * 4 * 8 * 4
    edges = {(edge.producer, edge.consumer): (edge.bytes, edge.backward_bytes) for edge in workload.profile.edges}
    assert edges["frozen", "trained"] == (128, 0)
    assert edges["trained", "join"] == edges["plain", "join"] == (128, 128)
    assert (workload.profile.microbatch_size, workload.num_microbatches) == (4, 3)
    assert workload.options == {"uneven_replication": False}
    assert layers["trained"].costs[0].optimizer_ns > 0 == layers["plain"].costs[0].optimizer_ns
    assert "Source: measured by pipeplan profile of measure_models:make_training" in workload.profile.provenance


def test_layers_are_timed_by_several_processes_at_once(folder: Path, answers: Any):
    """Tests that this is the default on a host, knows frozen layers, branches and whole backwards, and is told of."""
    assert answers["commands"]["busy"] == [0, "", ""]
    workload, alone = load_workload(folder / "busy.json"), load_workload(folder / "training.json").profile.by_name
    layers = workload.profile.by_name
    processes = min(2, len(os.sched_getaffinity(0)))
    assert workload.profile.conditions == ("busy" if processes > 1 else "alone")
    assert workload.profile.bucket_bytes == 2**25
    assert (f"layers timed by {processes} processes at once" in workload.profile.provenance) == (processes > 1)
    assert load_workload(folder / "training.json").profile.conditions == "alone"
    assert load_workload(folder / "training.json").profile.action_overhead_ns == ()
    if processes > 1:
        (overhead,) = workload.profile.action_overhead_ns
        assert overhead.device_type == "cpu"
        assert overhead.forward_ns + overhead.stages_forward_ns > 0
        assert overhead.input_grad_ns + overhead.stages_input_grad_ns > 0
        assert "actions of a pipeline of two processes" in workload.profile.provenance
    assert (layers["frozen"].costs[0].input_grad_ns, layers["plain"].costs[0].weight_grad_ns) == (0, 0)
    assert layers["plain"].costs[0].input_grad_ns > 0
    assert layers["trained"].costs[0].weight_grad_ns > 0
    assert workload.options == {"uneven_replication": False, "split_backward": False}
    assert {layer.weight_stash_bytes for layer in layers.values()} == {0}
    assert layers["trained"].stash_bytes < alone["trained"].stash_bytes


def test_every_share_of_a_microbatch_is_timed(folder: Path, answers: Any):
    """Tests that with two devices and microbatches of 4 samples 2 are timed as well, and only whole samples ever."""
    assert answers["commands"]["busy"][0] == 0
    layers = load_workload(folder / "busy.json").profile.layers
    assert {tuple(cost.microbatch_size for cost in layer.costs) for layer in layers} == {(None, 2)}
    assert shares(12, num_devices=4) == (12, 6, 4, 3)
    assert shares(5, num_devices=4) == (5,)
    assert shares(2, num_devices=64) == (2, 1)
    most = shares(720_720, num_devices=4096)
    assert (len(most), most[0], most[-1]) == (16, 720_720, 720_720 // 4095)


def test_what_cannot_be_split_says_so(answers: Any):
    """Tests that a layer of which I leaves W nothing names the module's class, and that its W takes no time."""
    found = answers["unsplit"]
    modules = {
        name: (is_splittable, module.rpartition(".")[2]) for name, (is_splittable, module) in found["modules"].items()
    }
    assert modules == {
        "plain": (True, ""),
        "own": (False, "OwnLinear"),
        "named": (True, ""),
        "partly": (True, ""),
        "norm": (False, "LayerNorm"),
        "bare": (True, ""),
    }
    assert {name for name, time in found["weight_grad_ns"].items() if time} == {"plain", "named", "partly"}
    assert "NOT SPLIT, W is part of I: own, norm" in found["provenance"]


def test_what_is_too_large_is_timed_alone(folder: Path, answers: Any):
    """Tests that layers that do not fit are estimated, and that the profile does not claim busy neighbours then."""
    assert answers["commands"]["too large"] == [0, "", ""]
    profile = load_workload(folder / "large.json").profile
    assert profile.conditions == "alone"
    assert "ESTIMATE" in profile.provenance


def test_several_sizes_are_costs_of_one_layer(folder: Path, answers: Any):
    """Tests that the first microbatch size is the profile's own and the others stand beside it."""
    assert answers["commands"]["sequential"] == [0, "", ""]
    profile = load_workload(folder / "sequential.json").profile
    assert profile.microbatch_size == 4
    assert [[cost.microbatch_size for cost in layer.costs] for layer in profile.layers] == [[None, 2]] * 3
    assert profile.is_chain


def test_a_batch_that_nobody_cut(folder: Path, answers: Any):
    """Tests that the workload states the global batch, and every doubling that divides it may be chosen."""
    assert answers["commands"]["open"] == [0, "", ""]
    workload = load_workload(folder / "open.json")
    assert (workload.global_batch_size, workload.num_microbatches) == (12, None)
    measured = {cost.microbatch_size or 1 for layer in workload.profile.layers for cost in layer.costs}
    assert {*measured, *(workload.microbatch_sizes or ())} == {1, 3, 6, 12}
    assert {1, 12} <= measured


def test_an_estimate_trains_nothing_for_a_trial(folder: Path, answers: Any):
    """Tests that a model whose costs are estimated is not trained beside its layers, and that its profile says so."""
    assert answers["commands"]["estimate of one"] == [0, "", ""]
    assert "; not compared with the model as it is: " in load_workload(folder / "one.json").profile.provenance
    assert "not compared" not in load_workload(folder / "traced.json").profile.provenance


def test_an_estimate_says_so(folder: Path, answers: Any):
    """Tests that an estimate is marked, is in bf16, and costs what a block's products and attention take by tables."""
    assert answers["commands"]["estimate"] == [0, "", ""]
    profile = load_workload(folder / "estimate.json").profile
    assert "ESTIMATE" in profile.provenance
    rates = default_rates_of("h100_sxm")
    assert rates.origin in profile.provenance
    block = profile.by_name["block0"]
    assert block.parameter_bytes == 2 * (12 * 2048 * 2048 + 13 * 2048)
    products = [Product(rows=2048, columns=n, inner=k) for n, k in ((6144, 2048), (2048, 2048), (8192, 2048))]
    products.append(Product(rows=2048, columns=2048, inner=8192))
    scores = CausalAttention(samples=2, sequence=1024, heads=16, key_value_heads=16, head_width=128)
    product_ns, attention_ns = sum(rates.price(each).ns for each in products), rates.price(scores).ns
    forward = product_ns + attention_ns
    assert forward < block.costs[0].forward_ns < 1.4 * forward  # norms, activation and additions move their bytes
    backward = product_ns + 2.9 * attention_ns
    assert backward < block.costs[0].input_grad_ns < 1.6 * backward
    turned = [Product(rows=each.columns, columns=each.inner, inner=each.rows) for each in products]
    weights = sum(rates.price(each).ns for each in turned)
    assert weights < block.costs[0].weight_grad_ns < 1.2 * weights  # gradients of biases are sums
    assert {cost.device_type for layer in profile.layers for cost in layer.costs} == {"H100"}


def test_progress_as_json(folder: Path, answers: Any):
    """Tests that with --json every line is an event and the last one sums up."""
    code, out, err = answers["commands"]["json"]
    events = [json.loads(line) for line in err.splitlines()]
    assert (code, out) == (0, "")
    assert {event["event"] for event in events[:-1]} == {"progress"}
    assert (events[-1]["event"], events[-1]["layers"], events[-1]["file"]) == ("done", 4, "traced.json")
    assert not (folder / "traced.json.partial").exists()


REFUSALS = {
    "no form": "'resnet50' is neither a factory nor a family; give module:factory",
    "no module": "No module named 'no_such_module'",
    "no factory": "has no attribute 'make'",
    "no function": "not a function; give a factory",
    "failing": "fails when it is called without arguments: no data",
    "a number": "gives a int; give a planner.execute.training.Training",
    "module alone": "gives a Linear; give",
    "branching": "branches on the values of its samples (__bool__)",
    "unknown setting": "did you mean 'layers'?",
    "no number": "layers = 'three' is out of range; give a whole number",
    "zero": "layers = '0' is out of range; give a whole number",
    "twice": "layers is given twice",
    "indivisible": "width = 100 is not a multiple of heads = 3",
    "depth": "layers = 51 is not one of 50, 101, 152",
    "uneven": "12 samples do not divide into 5 equal",
    "no sizes": "--global-batch 24: an iteration of the Training has 12 samples",
    "no divisor": "--global-batch 12: no size of -b divides it (5, 8)",
    "another batch": "--global-batch 24: an iteration of the Training has 12 samples",
    "batch and number": "--global-batch 12: `plan` then decides the number of microbatches; leave -m out",
    "bad sizes": "'4,x' is not a list",
    "double sizes": "has a number twice",
    "bad widths": "--widths '0' is not a list",
    "groups of one": "--group-widths 1,2: width 1 is always measured; give only widths above 1",
    "groups for a family": "--group-widths 2: needs a Training on processors without --dtype; leave it out",
    "groups of no batch": "--group-widths 2: an iteration of 0 samples is not a multiple of every size of -b; give -m",
    "no sheet": "give one of A100, H100",
    "no cuda": "torch finds no CUDA device here; use --device cpu, or --estimate A100",
    "wrong shapes": "layer 'b' cannot take what it is given",
    "inner gradients": "; leave torch.autograd.grad and torch.func out",
    "unknown input": "takes 'nowhere', which is not an earlier layer",
    "dictionaries": "a dict cannot be passed between layers",
    "broken journal": "broken.partial: line 1: was not written by pipeplan profile",
    "broken links": "places is empty",
    "no folder": "the folder nowhere does not exist",
}


@pytest.mark.parametrize("name", REFUSALS)
def test_mistakes_are_refused(answers: Any, name: str):
    """Tests that every mistake ends with exit code 2 and one message that names the value and a way out."""
    code, out, err = answers["commands"][name]
    assert (code, out) == (2, ""), err
    assert REFUSALS[name] in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_measured_costs_are_planned_with(folder: Path):
    """Tests that a measured document, put on a cluster, makes a problem whose stages have costs."""
    workload = load_workload(folder / "training.json")
    tiny = load_workload(folder / "training.json").profile
    assert workload.cluster is None
    cluster = Cluster(name="one", devices=(Device(name="d0", type="cpu", memory_bytes=2**30),))
    problem = make_problem(replace(workload, cluster=cluster))
    cost = CostModel(problem).stage_cost(Stage(layers=tiny.topological_order, replicas=(("d0",),)), 0)
    assert cost.forward_ns == sum(layer.costs[0].forward_ns for layer in tiny.layers)


@long_only
def test_experts_are_measured_in_bf16(tmp_path: Path):
    """Tests that a mixture of experts is measured in bf16 at three sizes, with recomputation."""
    model = "mixture:layers=1,width=32,heads=2,inner=16,experts=8,sequence=16,vocabulary=64"
    asked = ["profile", model, "-b", "4,2,1", "--dtype", "bf16", "--devices", "1", "--repetitions", "3", "--no-links"]
    target = tmp_path / "mixture.json"
    asked = [*asked, "-o", str(target)]
    ((code, said),) = run_forked(
        [Rank(program="api", arguments=asked, environment=one_thread(), log=tmp_path / "log")], timeout_s=300
    )
    assert code == 0, said
    profile = load_workload(target).profile
    assert [cost.microbatch_size for cost in profile.layers[1].costs] == [None, 2, 1]
    assert all(cost.recompute_ns > 0 for cost in profile.layers[1].costs)
    assert "bfloat16" in profile.provenance
