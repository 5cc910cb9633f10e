"""`pipeplan audit`: what is said of configurations, in words, as data and by exit codes."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from api.auditing import audited_problem
from api.auditing import configuration_audit as audit_module
from api.auditing.audit_report import _DENSE_ERRORS, _EXPERT_ERRORS, _PRECISIONS, error_of, shown_gpu
from api.auditing.audited_problem import make_audited_problem
from api.auditing.configuration_audit import Audit, play_run
from api.auditing.configuration_files import read_configuration
from api.cli import main
from planner.errors import InfeasibleProblemError, NoPlanFoundError
from planner.verify import verify
from profiles.configurations.audit_question import AuditQuestion
from profiles.configurations.megatron_layout import shortened, written_out
from profiles.configurations.run_configuration import Recomputation
from profiles.estimates.achieved_rates import known_rates
from tests.test_house_rules import ROOT

RECIPE = "Et*2|(t*2|)*34,t*3|(t*2|)*3,tL"
"""Of Megatron-Bridge's Llama-3-70B recipe: 8 ranks, 5 stages each."""

SMALL = {
    "model_type": "llama", "num_hidden_layers": 4, "hidden_size": 1024, "num_attention_heads": 8,
    "intermediate_size": 2816, "vocab_size": 32000,
}  # fmt: skip


@pytest.fixture(autouse=True)
def fixture_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times do not depend on which tables are installed."""
    monkeypatch.setattr(audited_problem, "default_rates_of", lambda name, **_: known_rates()[name])


@pytest.fixture(name="no_search")
def fixture_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_: object, **__: object) -> None:
        raise NoPlanFoundError("no time")

    monkeypatch.setattr(audit_module, "make_plan", nothing)


@pytest.fixture(name="model")
def fixture_model(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(SMALL))
    return str(path)


def audited(**asked: Any) -> audited_problem.AuditedProblem:
    question = AuditQuestion(**{"program": "megatron", **asked})
    return make_audited_problem(read_configuration(question), gpu=question.gpu or "h100")


def test_the_recipe_that_does_not_fit() -> None:
    """Tests that a public recipe's layout needs 100.0 GB of 80, and fits with one block per stage recomputed.

    By hand: the first rank holds 10 blocks and the embedding, 18 bytes a weight, and 47 forwards of 2 blocks; beside
    them bf16 gradients of a block's weights, and of two streams, two parts of them and two inner widths.
    """
    problem = audited(model="llama3-70b", tp=4, pp=8, layout=RECIPE)
    played = play_run(problem, recompute=None)
    weights = 8192 * (10240 + 8192 + 3 * 28672) // 4
    passing = 8192 * (2 * 8192 + (2 * 8192 + 2 * 28672) // 4)
    assert played.timeline.peak_bytes["rank0"] == 99_017_031_680 + 2 * (weights + passing)
    assert set(played.over_bytes) == {f"rank{number}" for number in range(8)}
    fitting = play_run(problem, recompute=Recomputation(blocks=1))
    assert not fitting.over_bytes
    assert fitting.timeline.makespan_ns > played.timeline.makespan_ns


def test_a_plan_of_the_configuration_is_valid(model: str) -> None:
    """Tests that the configuration as a plan passes every rule, for each program and order."""
    for asked in (
        {"pp": 2, "vpp": 2},
        {"pp": 2, "recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 1},
        {"program": "torchtitan", "pp": 2},
        {"program": "deepspeed", "pp": 2},
    ):
        problem = audited(model=model, **asked)
        plan = play_run(problem, recompute=problem.recompute).plan
        assert verify(problem.problem, plan).passed, asked


@pytest.mark.parametrize("schedule", ["GPipe", "ZBVZeroBubble", "Interleaved1F1B"])
def test_orders_of_torchtitan(model: str, tmp_path: Path, schedule: str) -> None:
    """Tests that its schedules are played on the ranks where torchtitan puts their stages."""
    file = tmp_path / "train.toml"
    file.write_text(f'[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_schedule = "{schedule}"\n')
    problem = audited(program="torchtitan", model=model, file=str(file))
    plan = play_run(problem, recompute=None).plan
    ranks = [stage.replicas[0][0] for stage in plan.stages]
    loops = {"GPipe": [0, 1], "ZBVZeroBubble": [0, 1, 1, 0], "Interleaved1F1B": [0, 1, 0, 1]}
    assert ranks == [f"rank{number}" for number in loops[schedule]]
    assert verify(problem.problem, plan).passed


def test_fewer_microbatches_than_two_rounds(model: str, tmp_path: Path) -> None:
    """Tests that torchtitan starts with three microbatches on two ranks, which are one round and all held at once."""
    file = tmp_path / "train.toml"
    file.write_text(
        "[training]\nlocal_batch_size = 3\n"
        '[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_schedule = "Interleaved1F1B"\n'
    )
    plan = play_run(audited(program="torchtitan", model=model, file=str(file)), recompute=None).plan
    drawn = {rank: " ".join(f"{a.kind}{a.stage}.{a.microbatch}" for a in own) for rank, own in plan.schedule.items()}
    assert drawn == {
        "rank0": "F0.0 F0.1 F0.2 F2.0 F2.1 F2.2 B2.0 B2.1 B2.2 B0.0 B0.1 B0.2",
        "rank1": "F1.0 F1.1 F1.2 F3.0 B3.0 F3.1 B3.1 F3.2 B3.2 B1.0 B1.1 B1.2",
    }


def test_replicas_shard_and_exchange(model: str) -> None:
    """Tests that a block's bytes are as by hand, sharded or not, and that replicas take time for gradients."""
    whole, shared = (
        audited(model=model, pp=2, devices=8, use_distributed_optimizer=is_shared) for is_shared in (False, True)
    )
    weights = 1024 * 1024 * 4 + 3 * 1024 * 2816
    block, less = (each.problem.profile.by_name["block.1"] for each in (whole, shared))
    assert block.state_bytes == 18 * weights
    assert less.state_bytes == 6 * weights + 3 * weights
    assert (
        block.costs[0].optimizer_ns
        > audited(model=model, pp=2).problem.profile.by_name["block.1"].costs[0].optimizer_ns
    )


def test_experts_on_more_devices() -> None:
    """Tests that experts dealt to eight devices leave an eighth of them on each, whatever shares the other weights."""
    one, eight = (
        audited(model="mixtral-8x7b", pp=4, devices=32, ep=ep).problem.profile.by_name["block.1"] for ep in (1, 8)
    )
    experts = 8 * 3 * 4096 * 14336
    assert one.parameter_bytes is not None
    assert eight.parameter_bytes is not None
    assert one.parameter_bytes - eight.parameter_bytes == 2 * experts * 7 // 8


def test_measured_layers(model: str) -> None:
    """Tests that a profile's layers take the place of estimates, at the degree that was measured, and no other."""
    estimated = audited(model=model, pp=2).problem.profile
    layers = (replace(estimated.layers[0], name="wte"), replace(estimated.layers[0], name="wpe"), *estimated.layers[1:])
    chain = [layer.name for layer in layers]
    edges = tuple(replace(estimated.edges[0], producer=a, consumer=b) for a, b in pairwise(chain))
    profile = replace(estimated, layers=layers, edges=edges)
    run = read_configuration(AuditQuestion(program="megatron", model=model, pp=2, layout="Et|tttL"))
    problem = make_audited_problem(run, gpu="h200", measured=profile)
    plan = play_run(problem, recompute=None).plan
    assert [stage.layers[:2] for stage in plan.stages] == [("wte", "wpe"), ("block.1", "block.2")]
    assert problem.problem.profile.by_name["block.1"].costs[0].forward_ns == estimated.layers[2].costs[0].forward_ns
    for asked, told in (({"tp": 2}, "not measured on 2 devices"), ({"micro_batch_size": 2}, "microbatch_size = 1")):
        other = read_configuration(AuditQuestion(program="megatron", model=model, **asked))
        with pytest.raises(ValueError, match=told):
            make_audited_problem(other, gpu="h100", measured=profile)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"pp": 1000}, "1,000 ranks of a pipeline"),
        ({"pp": 2, "global_batch_size": 10**7}, "microbatches times stages"),
    ],
)
def test_what_is_too_large(model: str, asked: dict[str, int], told: str) -> None:
    """Tests that what would take hours to play is refused at once."""
    with pytest.raises(ValueError, match=told):
        audited(model=model, **asked)


def run(*words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main(["audit", *words])
    shown = capsys.readouterr()
    return code, shown.out + shown.err


@pytest.mark.usefixtures("no_search")
def test_words_and_codes(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tests that 0 is a run, 2 what is not understood, 3 what does not start or fit, and what is named on the way."""
    code, shown = run("megatron", "--model", model, "--pp", "2", capsys=capsys)
    assert (code, "RUNS" in shown) == (0, True)
    assert "assumed, not stated: devices = 2 (one pipeline); micro_batch_size = 1" in shown
    assert "memory: peaks of 24 iterations of dense models measured on B200 were 1.00 times" in shown
    code, shown = run("megatron", "--model", model, "--pp", "3", capsys=capsys)
    assert (code, "4 blocks do not divide by 3 stages" in shown) == (3, True)
    code, shown = run("megatron", "--model", model, "--pp", "2", "--gpu-memory", "3", capsys=capsys)
    assert (code, "DOES NOT FIT: rank" in shown) == (3, True)
    wide = ("megatron", "--model", model, "--pp", "2", "--devices", "32")
    code, shown = run(*wide, capsys=capsys)
    assert (code, "; 50 GB/s of a GPU to other nodes" in shown) == (0, True)
    code, shown = run(*wide, "--network-gb-per-s", "12.5", capsys=capsys)
    assert (code, "network: 12.5 GB/s of a GPU to other nodes, as stated" in shown, "50 GB/s" in shown) == (
        0,
        True,
        False,
    )
    code, shown = run("megatron", "--model", model, "--pp", "2", "--network-gb-per-s", "12.5", capsys=capsys)
    assert (code, "all 2 GPUs are in one node; leave it out" in shown) == (2, True)
    code, shown = run("megatron", "--model", model, "--gpu", "x1", capsys=capsys)
    assert (code, "--gpu x1: not known; give one of a100" in shown) == (2, True)
    code, shown = run("megatron", "--model", model, "--gpu", "", capsys=capsys)
    assert (code, "--gpu : not known; give one of a100" in shown) == (2, True)
    script = tmp_path / "train.sh"
    script.write_text("python pretrain_gpt.py --bf16 --new-flag 3 --nccl-ub --lr 1\n")
    code, shown = run("megatron", str(script), "--model", model, capsys=capsys)
    assert (code, "NOT KNOWN: --new-flag 3" in shown) == (0, True)
    assert "read, but not in the estimate: --nccl-ub" in shown
    code, shown = run("megatron", str(script), "--model", model, "--strict", capsys=capsys)
    assert (code, "not known: --new-flag 3" in shown) == (2, True)
    code, shown = run("deepspeed", "--model", model, "--layout", "EL", capsys=capsys)
    assert (code, "--layout: deepspeed does not have it" in shown) == (2, True)
    code, shown = run("torchtitan", "--model", model, "--pp", "2", "--recompute-granularity", "full", capsys=capsys)
    assert (code, "torchtitan: config.json on 2 H100" in shown) == (0, True)
    code, shown = run("deepspeed", "--model", model, "--pp", "2", "--global-batch-size", "12", capsys=capsys)
    assert (code, "12 microbatches of 1" in shown) == (0, True)


def test_the_error_is_of_the_same_precision() -> None:
    """Tests that rows of a question's own GPU, precision and kind of model are quoted, or that there are none."""

    def told(**asked: Any) -> str:
        nothing = dict.fromkeys(("played", "explanation", "fitting", "better", "lower_bound_ns"))
        facts: dict[str, Any] = {**nothing, "refusals": (), "is_checked": False, "is_infeasible": False}
        return error_of(Audit(audited=audited(**asked), **facts))

    assert told(model="llama3-8b") == "no measured iterations of dense models in bf16 on H100 have been compared"
    assert told(model="llama3-8b", dtype="fp8").startswith("7 iterations of dense models in FP8 measured on H100")
    assert "in bf16 measured on GB200 took 1.63 times" in told(model="qwen3-30b-a3b", gpu="gb200")


def test_errors_are_those_of_the_pages() -> None:
    """Tests that the errors quoted are those of the generated table, rounded up at worst."""
    rows = json.loads((ROOT / "docs" / "tables" / "estimate-errors.json").read_text(encoding="utf-8"))["rows"]
    found = {
        (models, gpu, precision): (int(count), round(float(factor), 2), median, math.ceil(float(worst.split()[0])))
        for models, gpu, precision, count, factor, median, worst in rows
    }
    for models, errors in (("dense models", _DENSE_ERRORS), ("models with experts", _EXPERT_ERRORS)):
        for (gpu, dtype), (count, factor, median, worst) in errors.items():
            figures = (count, factor, f"{median} %", worst)
            assert found.pop((models, shown_gpu(gpu), _PRECISIONS[dtype])) == figures
    assert not found


def test_nothing_fits(model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Tests that a proof that nothing fits is told."""

    def impossible(*_: object, **__: object) -> None:
        raise InfeasibleProblemError("memory")

    monkeypatch.setattr(audit_module, "make_plan", impossible)
    code, shown = run("megatron", "--model", model, "--pp", "2", "--gpu-memory", "2", capsys=capsys)
    assert (code, "NOTHING FITS at these degrees" in shown) == (3, True)


@pytest.fixture(name="uneven", scope="module")
def fixture_uneven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audit")
    (folder / "config.json").write_text(json.dumps(SMALL))
    return folder


@pytest.mark.slow
def test_a_better_layout_as_data(uneven: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tests that a lopsided layout is told how much slower it is, with flags that are better and a certificate."""
    words = ["megatron", "--model", str(uneven / "config.json"), "--pp", "2", "--layout", "Et|tttL", "-t", "2"]
    code = main(["audit", *words, "--json", "--max-slower", "1", "-o", str(uneven / "out")])
    said: Mapping[str, Any] = json.loads(capsys.readouterr().out)
    assert code == 4
    assert said["verdict"] == "runs"
    assert 1 < said["slower"]["at_least_percent"] <= said["slower"]["at_most_percent"]
    assert said["certificate_checked"]
    assert said["better"]["time_ns"] < said["run"]["time_ns"]
    name, layout = said["better"]["flags"][0].split(" ", 1)
    assert name == "--pipeline-model-parallel-layout"
    assert "".join(written_out(layout.strip("'"))).count("t") == 4
    assert said["time_from"] == {"row": 0.0, "interpolated": 0.0, "assumed": 1.0}
    assert [rank["rank"] for rank in said["ranks"]] == [0, 1]
    assert sorted(path.name for path in (uneven / "out").iterdir()) == [
        "audited.json", "flags.txt", "plan.json", "workload.json",
    ]  # fmt: skip
    assert main(["verify", str(uneven / "out" / "plan.json"), str(uneven / "out" / "workload.json")]) == 0
    assert main(["verify", str(uneven / "out" / "audited.json"), str(uneven / "out" / "workload.json")]) == 0
    capsys.readouterr()


@pytest.mark.slow
def test_flags_say_how_their_file_is_written(uneven: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tests that flags of torchtitan that name a file say where it comes from, and that `-o` writes it."""
    options = ["--model", str(uneven / "config.json"), "--pp", "2", "-t", "2", "-o", str(uneven / "titan")]
    code, shown = run("torchtitan", *options, capsys=capsys)
    assert (code, 'pipeline_parallel_schedule_csv = "schedule.csv"' in shown) == (0, True)
    assert "schedule.csv is written with -o FOLDER" in shown
    assert (uneven / "titan" / "schedule.csv").is_file()


@pytest.mark.parametrize("layout", ["E|t|t|t|L", "Ett|tt|tt|tt|tmL", "EtttL", "Et|tttt|tttt|tt|L"])
def test_short_layouts(layout: str) -> None:
    """Tests that a layout written short is the same layout."""
    short = shortened(layout)
    assert "|".join(written_out(short)) == layout
    assert len(short) <= len(layout) + 1


@pytest.mark.slow
def test_a_hybrid_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tests that a hybrid model's stages are told by their letters, and the better plan's by a pattern of the same."""
    pattern = "M-M*-M-M-M*-M-M-"
    script = tmp_path / "train.sh"
    script.write_text(
        "torchrun --nproc-per-node 4 pretrain_hybrid.py --bf16 --hidden-size 1024 --num-attention-heads 8 "
        "--ffn-hidden-size 4096 --vocab-size 128000 --seq-length 2048 --pipeline-model-parallel-size 4 "
        "--micro-batch-size 1 --max-position-embeddings 2048 "
        f"--global-batch-size 32 --hybrid-layer-pattern '{pattern}'\n"
    )
    assert main(["audit", "megatron", str(script), "--gpu", "h100", "-t", "2", "--json", "--strict"]) == 0
    said: Mapping[str, Any] = json.loads(capsys.readouterr().out)
    assert said["configuration"]["layout"] == "M-M*|-M-M|-M*-|M-M-"
    name, better = said["better"]["flags"][0].split(" ")
    assert (name, better.strip("'").replace("|", "")) == ("--hybrid-layer-pattern", pattern)
    assert said["better"]["time_ns"] < 0.95 * said["run"]["time_ns"]
    assert "hybrid" in said["memory_error"]


MIXED = {
    "model_type": "qwen3_moe", "num_hidden_layers": 4, "hidden_size": 512, "num_attention_heads": 8, "num_experts": 8,
    "intermediate_size": 1024, "moe_intermediate_size": 768, "num_experts_per_tok": 2, "vocab_size": 32000,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("no_search")
def test_other_degrees(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tests that better degrees are told with flags for all of them, never above their bound, and as data."""
    (tmp_path / "config.json").write_text(json.dumps(MIXED))
    words = ["--model", str(tmp_path / "config.json"), "--devices", "4", "--pp", "2", "--global-batch-size", "8"]
    words += ["--other-degrees", "-t", "1"]
    code, shown = run("megatron", *words, "--tp", "2", "--json", capsys=capsys)
    found: Mapping[str, Any] = json.loads(shown)["degrees"]
    assert code == 0
    assert found["lower_bound_ns"] <= found["time_ns"] < json.loads(shown)["run"]["time_ns"]
    assert found["tensor"] * found["context"] * found["pipeline"] * found["data"] == 4
    named = [line.split()[0] for line in found["flags"]]
    assert named[:5] == [
        "--tensor-model-parallel-size", "--context-parallel-size", "--pipeline-model-parallel-size",
        "--expert-model-parallel-size", "--expert-tensor-parallel-size",
    ]  # fmt: skip
    assert found["looked_at"] > found["planned"] == 6
    code, shown = run("deepspeed", *words, capsys=capsys)
    assert (code, "deepspeed: other degrees are looked for with megatron and torchtitan only" in shown) == (2, True)
