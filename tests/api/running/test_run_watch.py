"""What a running plan is worth now: tests of api/running/run_watch.py."""

import gzip
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from api.cli import main
from api.running.run_watch import read_timings
from planner.document import render_plan
from planner.verify import verify
from profiles.workload import Workload, dump_workload
from tests.planner.execute.test_enter import start_ranks
from tests.planner.export.chains import make_chain
from tests.planner.export.chains import make_plan as make_drawn

NAPPING = """
import os, time
from functools import partial
import torch
from execute_models import Block, vectors
from planner.execute.training import Training

NAP_S = float(os.environ["NAP_S"])


def nap():
    slow = os.environ["RANK"] == os.environ.get("SLOW_RANK", "")
    time.sleep(NAP_S * (2.5 if slow else 1))


class Nap(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        nap()
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        nap()
        return gradient


class Napping(Block):
    def forward(self, x):
        return Nap.apply(super().forward(x))


def make(**keywords):
    return Napping().double()


def model():
    whole = vectors("wwww", num_microbatches=4)
    loading = float(os.environ.get("LOADING_S", "0"))

    def batch(number):
        time.sleep(loading)
        return whole.batch(number)

    return Training(**(vars(whole) | {"layers": {f"l{n}": make for n in range(4)}, "batch": batch}))
"""


NAPS_S = (0.04, 0.16, 0.64)
"""A busy machine wakes processes late, which are then slow indeed: a run that shows it is made with longer naps."""


def napping_plan(path: Path, *, nap_s: float) -> None:
    """Four layers, each of a nap forward and one backward, in four stages on two devices; written to `path`."""
    nap_ns = round(nap_s * 1e9)
    problem = make_chain("wwww", num_devices=2, num_microbatches=4)
    times = {"forward_ns": nap_ns, "input_grad_ns": nap_ns, "weight_grad_ns": 1, "backward_ns": nap_ns}
    cost = replace(problem.profile.layers[0].costs[0], **times)
    layers = tuple(replace(layer, costs=(cost,)) for layer in problem.profile.layers)
    problem = replace(problem, profile=replace(problem.profile, layers=layers))
    drawing = """
    d0: 0F0 0F1 2F0 2F1 0F2 0F3 2B0 2F2 2B1 2F3 0B0 2B2 0B1 2B3 0B2 0B3
    d1: 1F0 1F1 3F0 3B0 3F1 3B1 1F2 1F3 1B0 3F2 3B2 1B1 3F3 3B3 1B2 1B3
    """
    made = make_drawn(problem, drawing, stages="0@d0 1@d1 2@d0 3@d1")
    assert verify(problem, made).passed
    path.write_text(render_plan(replace(made, evidence=None)))
    (path.parent / "workload.json").write_text(
        dump_workload(Workload(profile=problem.profile, cluster=problem.cluster, num_microbatches=4))
    )


def watch(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    words = ["watch", str(folder / "plan.json"), str(folder / "traces"), "-w", str(folder / "workload.json")]
    capsys.readouterr()
    assert main([*words, "--json", "-t", "1", "--tolerance", "0.25"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_plan_without_a_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Tests that with neither traces, a loss nor a file for a new plan, the command says what is missing."""
    assert main(["watch", str(tmp_path / "plan.json")]) == 2
    assert "add the folder of a --trace, or --lost NAME -o FILE" in capsys.readouterr().err


def test_compressed_traces_of_a_folder_are_found(tmp_path: Path):
    """Tests that traces in a folder are found as torch's profiler compresses them."""
    problem = make_chain("wwww", num_devices=2, num_microbatches=4)
    plan = make_drawn(problem, "d0: 0F0 0I0 0W0\nd1: 1F0 1I0 1W0", stages="0,1@d0 2,3@d1")
    for stage in (0, 1):
        actions = [(f"PP:{stage}F0", 0, 9), (f"PP:{stage}I0", 9, 12)]
        events = [{"ph": "X", "name": name, "ts": start, "dur": end - start} for name, start, end in actions]
        text = json.dumps({"traceEvents": events})
        (tmp_path / f"worker{stage}.pt.trace.json.gz").write_bytes(gzip.compress(text.encode()))
    seen = read_timings([str(tmp_path)], plan)
    assert seen.durations_ns["d1", 1, "I"] == ((3_000,),)
    assert not seen.missing_devices


def test_a_slowed_process_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """Tests that of two real processes the one whose actions take 2.5 times as long is named, and its layers are not.

    Tests that as planned nobody is named, and that slow loading of data is told as time between iterations.
    """
    (tmp_path / "napping.py").write_text(NAPPING)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    command = [tmp_path / "plan.json", "--model", "napping:model", "--steps", 3, "--trace", tmp_path / "traces"]
    for slow, loading in (("1", "0"), ("", "0.6")):
        for nap_s in NAPS_S:
            napping_plan(tmp_path / "plan.json", nap_s=nap_s)
            variables = {"SLOW_RANK": slow, "LOADING_S": loading, "NAP_S": str(nap_s)}
            ranks = start_ranks([command] * 2, **{name: (value, value) for name, value in variables.items()})
            assert [code for code, _ in ranks] == [0, 0], ranks
            said = watch(tmp_path, capsys)
            named = [culprit["alternatives"][0] for culprit in said["culprits"]]  # type: ignore[attr-defined]
            devices = [each for way in named for each in way if each["kind"] != "link"]
            if len(devices) == len(slow) and all(2.2 < each["factor"] < 3.2 for each in devices):
                break
        if slow:
            (suspect,) = devices
            assert (suspect["kind"], suspect["name"]) == ("device", "d1")
            assert 2.2 < suspect["factor"] < 3.2
        else:
            assert all(abs(each["factor"] - 1) < 0.25 for each in devices)
            assert said["between_iterations_ns"] > 4e8  # type: ignore[operator]
