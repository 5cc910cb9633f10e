"""The fidelity table: ratios and errors of contenders, its records, and one model from profile to row."""

import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from api.cli import main
from benchmarks import fidelity, user_flow
from benchmarks.fidelity import MODELS, OWN, Entry, FidelityRecords, add_rows, make_entries, ranked, summarise
from benchmarks.report import Table
from benchmarks.user_flow import FAILED, Flow, balanced_cut, make_layout
from planner.execute.table.wiring import make_wirings
from profiles.workload import dump_workload
from tests.api.worlds import make_workload
from tests.long_runs import long_only

ROOT = Path(__file__).resolve().parents[2]
MS = 10**6


def entry(name: str, *, predicted: int, turns: list[float], alone: float = 0, is_plan: bool = True) -> Entry:
    """A contender that took so many milliseconds in the rounds of one launch, and alone."""
    about = {"plan": "file"} if is_plan else {"schedule": "1F1B"}
    times = [[each * MS for each in turns]] if turns else []
    return Entry(name=name, about=about, predicted_ns=predicted * MS, turns=times, alone=[alone * MS] * bool(alone))


def test_ratios_are_those_of_neighbours_in_time():
    """Tests that a host that becomes twice as slow changes no ratio, and that the predicted one is held against it."""
    own = entry(OWN, predicted=100, turns=[100, 200, 400])
    other = entry("1F1B", predicted=165, turns=[150, 300, 600])
    assert other.ratio_to(own) == pytest.approx(1.5)
    assert other.ratio_error(own) == pytest.approx(0.1)
    assert own.ratio_error(own) == 0
    assert entry("late", predicted=1, turns=[]).ratio_to(own) is None


def test_targets_are_held_against_what_was_measured():
    """Tests that ratios of plans and of torch's own, times and ranks each have a line with its target."""
    own = entry(OWN, predicted=98, turns=[100], alone=100)
    plan = entry("1F1B", predicted=98, turns=[101], alone=90)
    rival = entry("torch DDP", predicted=98, turns=[95], is_plan=False)
    own.held, own.peak_bytes = {"d0": 200, "d1": 100}, {"d0": 190, "d1": 104}
    text = "\n".join(summarise([(MODELS[0], [own, plan, rival])]))
    assert "2 plans ran, on 1 models." in text
    assert "Ratio of plans to the preferred plan: median error 0.99 % (target 2.00 %: met)" in text
    assert "Ratio of torch's own to the preferred plan: median error 5.26 % (target 2.00 %: missed)" in text
    assert (
        "Time of a plan alone: median error 5.44 % (target 3.00 %: missed), worst 8.89 % (target 10.00 %: met)" in text
    )
    assert "Peak memory of a device: median error 4.50 % (target 4.00 %: missed)" in text
    assert "too little by at most 5.00 % (target 3.00 %: missed)" in text
    assert "hold the same" not in text  # no two are predicted alike
    assert "within 2.00 %, on 0.00 % of the models (target 90.00 %: missed)" in text
    assert "the preferred plan takes 1.053 of the fastest (torch DDP)" in text
    plan.held, plan.peak_bytes = {"d0": 204, "d1": 200, "d2": 100}, {"d0": 201, "d1": 201, "d2": 100}
    text = "\n".join(summarise([(MODELS[0], [own, plan, rival])]))
    assert "hold the same differ by 2.00 % on the median, 2.00 % at worst" in text
    assert [each.name for _, each in ranked([own, plan, rival])] == ["torch DDP", OWN, "1F1B"]
    table = Table(preface=(), header=fidelity.HEADER)
    add_rows(table, MODELS[-1], [own, plan, rival])
    assert "not tuned on" in table.lines[-1]
    assert table.lines[-3].endswith("| 0.0 | 0.0 | 2 of 3 |")


def test_records_are_continued(tmp_path: Path):
    """Tests that a file that was cut short in a line gives what stands before it, per model and contender."""
    records, model = FidelityRecords(tmp_path / "records.jsonl"), MODELS[0]
    names = (OWN, "1F1B")
    entries = [{"name": name, "about": {"plan": name}, "predicted_ns": 5} for name in names]
    records.add({"model": model.factory, "kind": "entries", "entries": entries})
    times = {OWN: [1.0, 2.0], "1F1B": [2.0, 4.0]}
    records.add({"model": model.factory, "kind": "turns", "times": times, "failures": {}})
    alone = {"model": model.factory, "kind": "alone", "times": [3.0], "held": {"d0": 7}, "failure": ""}
    records.add({**alone, "name": "1F1B"})
    with open(records.path, "a", encoding="utf-8") as file:
        file.write('{"model": "cut sh')
    own, other = FidelityRecords(records.path).entries(model)
    assert (own.turns, own.alone, other.alone, other.held) == ([[1.0, 2.0]], [], [3.0], {"d0": 7})
    assert other.ratio_to(own) == 2
    FidelityRecords(records.path).add({"model": model.factory, "kind": "turns", "times": times, "failures": {}})
    assert len(FidelityRecords(records.path).of(model, "turns")) == 2
    assert FidelityRecords(records.path).entries(MODELS[1]) == []


class Ended:
    """A launch in which one contender failed on one process while the other waited for it."""

    def launch(self, *_: object, **__: object) -> list[dict[str, object]]:
        raise fidelity.ContenderError("torch ZBVZeroBubble", "RuntimeError: a graph a second time")


def test_only_the_contender_that_ended_a_launch_is_left_out(tmp_path: Path):
    """Tests that the first process to fail names it, and that the others take part in the next launch."""
    (tmp_path / f"{FAILED}1").write_text("torch ZBVZeroBubble\nRuntimeError: a graph a second time")
    os.utime(tmp_path / f"{FAILED}1", ns=(1, 1))
    (tmp_path / f"{FAILED}0").write_text("torch ZBVZeroBubble\nRuntimeError: connection closed")
    with pytest.raises(fidelity.ContenderError, match="second time") as caught:
        fidelity._require_no_failed(tmp_path)
    assert caught.value.name == "torch ZBVZeroBubble"
    records, model = FidelityRecords(tmp_path / "records.jsonl"), MODELS[0]
    names = (OWN, "torch 1F1B", caught.value.name)
    entries = [asdict(entry(name, predicted=9, turns=[], is_plan=name == OWN)) for name in names]
    records.add({"model": model.factory, "kind": "entries", "entries": entries})
    fidelity.run_turns(Ended(), model, records)
    assert [each.name for each in records.entries(model) if each.failure] == ["torch ZBVZeroBubble"]


def test_the_cut_is_balanced():
    """Tests that layers of 1, 1, 1 and 2 ms are cut so that the largest stage is smallest."""
    workload = make_workload()
    assert balanced_cut(workload.profile, 2) == (2, 2)
    assert balanced_cut(workload.profile, 4) == (1, 1, 1, 1)
    from api.inputs import make_problem

    problem = make_layout(make_problem(workload), (3, 1), places=[(0,), (1,)])
    assert problem.options.partition == (("embed", "block.0", "block.1"), ("head",))
    assert problem.options.placement == ((("gpu0",),), (("gpu1",),))


@pytest.mark.slow
@long_only
def test_contenders_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Tests that a model gets own, given and torch's contenders, each predicted, as the plan that does the same."""

    def run(command: str, *arguments: str) -> None:
        assert main([command, *arguments, "--max-rounds", "1"]) == 0

    monkeypatch.setattr(user_flow, "pipeplan", run)
    monkeypatch.setattr(fidelity, "PLANNING_S", 60.0)
    workload = make_workload().with_batch(12, None)
    flow = Flow(MODELS[0], tmp_path)
    flow.path.write_text(dump_workload(workload))
    entries = {each.name: each for each in make_entries(flow, workload)}
    assert entries["torch 1F1B"].predicted_ns == entries["1F1B"].predicted_ns > 0
    assert {"torch GPipe", "torch ZBVZeroBubble", "torch DDP", "torch DDP, accumulating"} <= set(entries)


@long_only
@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "t5", "vit", "resnet18", "qwen3", "whisper", "convnext"])
@pytest.mark.filterwarnings("default")
def test_transformers_models_can_be_cut_anywhere(name: str):
    """Tests that every cut of a model in two has shapes at its border, and that a microbatch has a loss."""
    import torch

    from planner.execute.stage.stage_module import StageTracer
    from planner.execute.training import as_tuple, load_training

    training = load_training(f"benchmarks.transformers_models:{name}")
    names = list(training.layers)
    inputs, target = training.batch(0)
    piece = tuple(tensor[:2] for tensor in as_tuple(inputs))
    for cut in range(1, len(names)):
        wirings = make_wirings([names[:cut], names[cut:]], names, inputs=training.inputs)
        shapes = StageTracer(training, wirings).trace(piece)
        assert all(shape.outputs for shape in shapes)
    assert torch.isfinite(
        training.loss(shapes[-1].outputs[0].new_zeros(shapes[-1].outputs[0].shape, device="cpu"), target[:2])
    )


@pytest.mark.slow
@long_only
def test_one_model_from_profile_to_row(tmp_path: Path):
    """Tests that `--quick` profiles, plans and runs a small model in turns with torch's own, and says it in a table."""
    output, records = tmp_path / "table.md", tmp_path / "records.jsonl"
    command = [sys.executable, "-m", "benchmarks.fidelity", "--quick", "--minutes", "0.1", "-o", str(output)]
    done = subprocess.run([*command, "--records", str(records)], cwd=ROOT, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stderr
    rows = [line for line in output.read_text().splitlines() if line.startswith("| small GPT")]
    names = [row.split(" | ")[1] for row in rows]
    assert names[0] == OWN
    assert {"1F1B", "torch 1F1B", "torch GPipe", "torch ZBVZeroBubble", "torch DDP"} <= set(names)
    assert "failed" not in "".join(rows)
