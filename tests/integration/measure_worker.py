"""Measures tiny models and prints what was found, as JSON; started by `test_measure.py`, not imported.

Arguments: a folder for documents.
"""

import contextlib
import io
import json
import os
import signal
import sys
import time
import warnings
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))

from api.cli import main
from planner.execute.model.layer_alone import make_deferring
from planner.execute.training import training_of
from profiles.measure.assemble import Origin, make_profile
from profiles.measure.clocks import HostClock
from profiles.measure.estimate import SHEETS
from profiles.measure.load_model import load_model
from profiles.measure.measure_layers import Findings, MeasuringStep, Survey, survey_model
from profiles.measure.model import Model, as_tuple, sources_of
from profiles.measure.record import Journal, open_journal
from profiles.measure.segment import MeasuringEffort
from tests.long_runs import shortened

QUICK = MeasuringEffort(repetitions=1, warm_up=0)
GPT = "gpt:layers=3,width=128,heads=4,sequence=64,vocabulary=256"
LARGE = "gpt:layers=1,width=2048,heads=16,sequence=1024,vocabulary=256"
FAMILIES = (
    GPT,
    "llama:layers=1,width=32,heads=4,groups=2,inner=48,sequence=16,vocabulary=40",
    "mixture:layers=1,width=32,heads=2,inner=16,experts=4,per_token=2,sequence=16,vocabulary=40",
    "resnet:width=4,image=32,classes=8",
    "vit:layers=1,width=32,heads=2,image=32",
)


def survey(name: str, *, journal: Journal | None = None, hear: Any = None, **how: Any) -> Findings:
    wanted = Survey(**({"microbatch_sizes": (2,), "effort": QUICK} | how))
    return survey_model(load_model(name).model, wanted, defer=make_deferring, journal=journal, hear=hear)


def killed_and_resumed(folder: Path) -> dict[str, Any]:
    """A child measures slowly until it is killed in the midst of it; then the rest is measured here."""
    path, name = folder / "journal", "resnet:width=4,image=32,classes=8"
    how = {"microbatch_sizes": (2,), "effort": replace(QUICK, repetitions=2), "each_layer": True}
    with warnings.catch_warnings(
        action="ignore"
    ):  # newer Pythons warn of threads; the child computes in one of its own
        child = os.fork()
    if not child:
        survey(name, journal=open_journal(path), hear=lambda _: time.sleep(0.2), **how)
        os._exit(0)
    while not path.exists() or path.read_text().count("\n") < 3:
        assert os.waitpid(child, os.WNOHANG) == (0, 0), "the child has ended"
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    kept = path.read_text().count("\n")
    with open(path, "a") as file:
        file.write('{"key": "cut sho')
    steps: list[MeasuringStep] = []
    survey(name, journal=open_journal(path), hear=steps.append, **how)
    again: list[MeasuringStep] = []
    survey(name, journal=open_journal(path), hear=again.append, **how)
    return {"kept": kept, "how": [step.how for step in steps], "again": [step.how for step in again]}


def sums() -> dict[str, float]:
    """All layers one by one, over the whole model in one piece, by the thread's own time."""
    found = survey(GPT, microbatch_sizes=(4,), effort=MeasuringEffort(repetitions=5))
    layers = {phase: sum(r.timings[phase].ns for r in found.records.values()) for phase in "FIWBR"}
    model = load_model(GPT).model
    module = nn.Sequential(*(make() for make in model.layers.values()))
    inputs, target = model.batch(0)
    clock = HostClock()
    for _ in range(7):
        with clock.span("F"):
            loss = model.loss(module(as_tuple(inputs)[0][:4]), target[:4])
        with clock.span("B"):
            loss.backward()
    whole = {
        phase: sorted(thread or 0 for _, thread in taken)[len(taken) // 2] for phase, taken in clock.samples.items()
    }
    return {
        "F": layers["F"] / whole["F"],
        "I + W": (layers["I"] + layers["W"]) / whole["B"],
        "B": layers["B"] / whole["B"],
        "R": layers["R"] / (whole["B"] + whole["F"]),
    }


def quiet_sums() -> dict[str, float]:
    """Of up to three the first without a ratio near two: beside other tests caches are not a thread's own."""
    for _ in range(2):
        if max((found := sums()).values()) < 1.6:
            return found
    return sums()


def real_and_fake() -> dict[str, list[str]]:
    """Bytes that differ between real and fake tensors, by family; empty where none does."""
    differing = {}
    for name in FAMILIES[: shortened(4, whole=None)]:
        real, fake = (
            survey(name, recomputes=False),
            survey(name, sheet=replace(SHEETS["A100"], compute_capability=None)),
        )
        differing[name] = [
            f"{key[0]}.{field}: {value} real, {asdict(fake.records[key].sizes)[field]} fake"
            for key, record in real.records.items()
            for field, value in asdict(record.sizes).items()
            if not _agree(field, value, counted=asdict(fake.records[key].sizes)[field])
        ]
        assert all(record.is_measured for record in real.records.values())
        assert not any(record.is_measured for record in fake.records.values())
    return differing


INSIDE_BYTES = 2**17
"""What a kernel of these small layers may hold besides tensors."""


def _agree(field: str, value: int, *, counted: int) -> bool:
    """What is needed while an operation runs depends on kernels: fake tensors see fused ones in pieces, not what small
    ones hold inside, and not which part of it stays with fewer samples.
    """
    if field == "fixed_workspace":
        return counted == 0
    if field == "workspace":
        return counted <= 2 * value and value <= max(2 * counted, counted + INSIDE_BYTES)
    return value == counted


def parameters() -> dict[str, int]:
    """Millions of parameters at settings that are published."""
    counts = {}
    for name in (
        "gpt", "gpt:layers=48,width=1600,heads=25", "llama", "llama:layers=80,width=8192,heads=64,inner=28672",
        "vit", "vit:layers=24,width=1024,heads=16", "resnet", "resnet:layers=152",
    ):  # fmt: skip
        layers = load_model(name).model.layers
        with torch.device("meta"):
            counts[name] = sum(tensor.numel() for make in layers.values() for tensor in make().parameters())
    return counts


def limits() -> dict[str, Any]:
    small = survey(GPT, memory_bytes=10**6)
    return {key[0]: record.estimate for key, record in small.records.items()}


def widths() -> list[list[Any]]:
    found = survey(FAMILIES[1], widths=(1, 2))
    return [[name, width, record.timings["F"].ns] for (name, _, width), record in found.records.items()]


def alike() -> dict[str, list[str]]:
    steps: dict[str, list[str]] = {}
    for each in (False, True):
        heard = steps.setdefault(str(each), [])
        survey(GPT, each_layer=each, hear=lambda step, heard=heard: heard.append(step.how))
    return steps


def cut() -> dict[str, Any]:
    """The layers of a traced module one after the other give what the module gives."""
    model = load_model("measure_models:traced", cut=training_of).model
    values: dict[str, tuple[torch.Tensor, ...]] = {"": as_tuple(model.batch(0)[0])}
    torch.manual_seed(0)
    module, _ = load("traced")
    for name, sources in sources_of(model).items():
        layer = model.layers[name]()
        values[name] = as_tuple(layer(*(tensor for source in sources for tensor in values[source])))
    return {"takes": sources_of(model), "is_equal": torch.equal(values[name][0], module(values[""][0]))}


def load(factory: str) -> Any:
    import measure_models

    return getattr(measure_models, factory)()


def linear() -> dict[str, float]:
    """One large product: I and W cost about as much as F each, and B as much as both; the least of three times."""
    module = nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 256))
    model = Model(
        layers={"first": lambda: module[0], "second": lambda: module[1]},
        loss=lambda output, target: output.mean(),
        batch=lambda _: (torch.randn(256, 256), torch.zeros(256)),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0),
    )
    wanted = Survey(microbatch_sizes=(256,), effort=MeasuringEffort(repetitions=7))
    tries = [survey_model(model, wanted, defer=make_deferring).records["second", 256, 1] for _ in range(3)]
    times = {phase: min(record.timings[phase].ns for record in tries) for phase in "FIWBR"}
    assert module[0].weight.grad is None, "a module that exists is left alone"
    return {phase: times[phase] / times["F"] for phase in "IWBR"} | {"saved": tries[0].sizes.saved}


class OwnLinear(nn.Linear):
    """Uses its weights in a way of its own, so its gradients are never put off."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.weight.mean()


class NamedLinear(nn.Linear):
    """Computes as its base does."""


def unsplit() -> dict[str, Any]:
    """Per layer what keeps it from being split, and I and W of the profile."""
    layers = {
        "plain": lambda: nn.Linear(8, 8),
        "own": lambda: OwnLinear(8, 8),
        "named": lambda: NamedLinear(8, 8),
        "partly": lambda: nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8)),
        "norm": lambda: nn.LayerNorm(8),
        "bare": nn.ReLU,
    }
    model = Model(
        layers=layers,
        loss=lambda output, target: output.mean(),
        batch=lambda _: (torch.randn(4, 8), torch.zeros(4)),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0),
    )
    found = survey_model(model, Survey(microbatch_sizes=(4,), effort=QUICK), defer=make_deferring)
    origin = Origin(model="unsplit", machine="here")
    profile = make_profile("unsplit", takes=found.takes, records=found.records, asked=found.survey, origin=origin)
    return {
        "modules": {layer.name: [layer.splittable, layer.unsplit_module] for layer in profile.layers},
        "weight_grad_ns": {layer.name: layer.costs[0].weight_grad_ns for layer in profile.layers},
        "provenance": profile.provenance,
    }


def commands(folder: Path) -> dict[str, list[Any]]:
    os.chdir(folder)
    sys.path.insert(0, str(Path(__file__).parent))
    os.environ["PYTHONPATH"] = os.pathsep.join([os.environ["PYTHONPATH"], str(Path(__file__).parent)])  # of others
    Path("broken.partial").write_text('{"key": 3}\n')
    Path("links.json").write_text('{"format": "pipeline-links/1", "places": []}')
    base = ("--alone", "--no-links", "--repetitions", "1", "-q")
    lines = {
        "training": ("measure_models:make_training", "-m", "3", "-o", "training.json", *base),
        "open": ("measure_models:make_training", "-o", "open.json", *base),
        "sequential": ("measure_models:sequential", "-b", "4,2", "-o", "sequential.json", *base),
        "estimate": (LARGE, "-b", "2", "--estimate", "H100", "-o", "estimate.json", *base),
        "estimate of one": ("measure_models:traced", "-b", "2", "--estimate", "H100", "-o", "one.json", *base),
        "json": ("measure_models:traced", "-b", "2", "-o", "traced.json", *base[:-1], "--json"),
        "busy": (
            "measure_models:make_training",
            "-m",
            "3",
            "--devices",
            "2",
            "-o",
            "busy.json",
            "--no-split",
            "--attempts",
            "1",
            *base[1:],
        ),
        "too large": (
            "measure_models:make_training",
            "-m",
            "3",
            "--memory",
            "0.0000001",
            "-o",
            "large.json",
            *base[1:],
        ),
        "no form": ("resnet50", "-b", "2"),
        "no module": ("no_such_module:make", "-b", "2"),
        "no factory": ("measure_models:make", "-b", "2"),
        "no function": ("measure_models:not_a_function", "-b", "2"),
        "failing": ("measure_models:failing", "-b", "2"),
        "a number": ("measure_models:number", "-b", "2"),
        "module alone": ("measure_models:module_alone", "-b", "2"),
        "branching": ("measure_models:branching", "-b", "2"),
        "unknown setting": ("gpt:layer=3", "-b", "2"),
        "no number": ("gpt:layers=three", "-b", "2"),
        "zero": ("gpt:layers=0", "-b", "2"),
        "twice": ("gpt:layers=2,layers=3", "-b", "2"),
        "indivisible": ("gpt:width=100,heads=3", "-b", "2"),
        "depth": ("resnet:layers=51", "-b", "2"),
        "uneven": ("measure_models:make_training", "-m", "5"),
        "no sizes": ("measure_models:make_training", "--global-batch", "24"),
        "no divisor": ("measure_models:make_training", "-b", "5,8", "--global-batch", "12"),
        "another batch": ("measure_models:make_training", "-b", "2", "--global-batch", "24"),
        "batch and number": ("measure_models:make_training", "-m", "3", "-b", "4", "--global-batch", "12"),
        "bad sizes": ("measure_models:make_training", "-b", "4,x"),
        "double sizes": ("measure_models:make_training", "-b", "4,4"),
        "bad widths": ("measure_models:make_training", "-m", "3", "--widths", "0"),
        "groups of one": ("measure_models:make_training", "-m", "3", "--group-widths", "1,2"),
        "groups for a family": ("gpt:layers=1,width=8,heads=1", "-b", "1", "--group-widths", "2"),
        "groups of no batch": ("measure_models:make_training", "-b", "5", "--group-widths", "2"),
        "no sheet": ("measure_models:make_training", "-m", "3", "--estimate", "abacus"),
        "no cuda": ("measure_models:make_training", "-m", "3", "--device", "cuda"),
        "wrong shapes": ("measure_models:wrong_shapes", "-m", "3", *base),
        "inner gradients": ("measure_models:inner_gradients", "-b", "2", *base),
        "unknown input": ("measure_models:unknown_input", "-m", "3", *base),
        "dictionaries": ("measure_models:dictionaries", "-m", "3", *base),
        "broken journal": ("measure_models:make_training", "-m", "3", "--journal", "broken.partial", *base),
        "broken links": ("measure_models:make_training", "-m", "3", "--links", "links.json", *base[1:]),
        "no folder": ("measure_models:make_training", "-m", "3", "-o", "nowhere/w.json"),
    }
    return {name: run(*line) for name, line in lines.items()}


def run(*arguments: str) -> list[Any]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["profile", *arguments])
    return [int(code), out.getvalue(), err.getvalue()]


if __name__ == "__main__":
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    place = Path(sys.argv[1])
    took = {}
    answers: dict[str, Any] = {"took": took}
    for name, find in {
        "resumed": lambda: killed_and_resumed(place), "sums": quiet_sums, "real_and_fake": real_and_fake,
        "limits": limits,
        "widths": widths, "parameters": parameters,
        "alike": alike, "cut": cut, "linear": linear, "unsplit": unsplit, "commands": lambda: commands(place),
    }.items():  # fmt: skip
        started = time.monotonic()
        answers[name] = find()
        took[name] = round(time.monotonic() - started, 1)
    (place / "answers.json").write_text(json.dumps(answers))
