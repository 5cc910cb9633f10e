"""`pipeplan import aiconfigurator` on a small package of tables that lies where an installed one would."""

import json
from pathlib import Path

import pytest

from profiles.importers.aiconfigurator.default_rates import default_rates_of
from profiles.importers.aiconfigurator.tables import find_package
from profiles.load import load_workload
from tests.api.worlds import Shell
from tests.profiles.table_package import install, make_package

IMPORT = ("import", "aiconfigurator", "--model", "toy/llama", "--gpu", "toy")


@pytest.fixture
def installed(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch):
    folder: Path = tmp_path_factory.mktemp("site")
    make_package(folder)
    install(folder)
    find_package.cache_clear()
    default_rates_of.cache_clear()
    monkeypatch.syspath_prepend(folder)
    yield folder
    find_package.cache_clear()
    default_rates_of.cache_clear()


@pytest.mark.slow
def test_a_workload_is_put_together_and_planned(shell: Shell, installed: Path):
    """Tests that model, device type, degrees, sizes and hosts become a workload that `plan` answers."""
    sizes = ("--tensor-parallel", "1,2", "-b", "1,2", "--sequence", "256", "--hosts", "1", "--global-batch", "16")
    outcome = shell.run(*IMPORT, *sizes, "-o", "w.json")
    assert (outcome.code, outcome.out) == (0, ""), outcome.err
    assert "toy/llama, bf16: 4 layers" in outcome.err
    assert "are rows of tables" in outcome.err
    workload = load_workload("w.json")
    assert workload.global_batch_size == 16
    assert workload.cluster is not None
    assert len(workload.cluster.devices) == 8
    assert "bandwidths and memory are those of the sheets" in workload.profile.provenance
    planned = shell.run("plan", "w.json", "--max-rounds", "1", "--time-limit", "5", "-o", "p.json")
    assert planned.code == 0, planned.err


def test_what_is_said_as_json(shell: Shell, installed: Path):
    """Tests that with --json the summary is data: times of a block and what part rests on what."""
    outcome = shell.run(*IMPORT, "--sequence", "256", "-m", "8", "--device-type", "T", "--json", "-o", "w.json")
    assert outcome.code == 0, outcome.err
    said = json.loads(outcome.err or outcome.out)
    assert (said["event"], said["layers"], said["devices"]) == ("done", 4, 0)
    assert sum(said["time_from"].values()) == pytest.approx(1, abs=0.001)
    assert [each["device_type"] for each in said["block"]] == ["T"]
    assert load_workload("w.json").num_microbatches == 8


REFUSALS = {
    ("import", "aiconfigurator", "--gpu", "toy"): "give --model and --gpu; models: llama3-8b",
    (*IMPORT[:4], "--gpu", "abacus"): 'no measured tables of "abacus"; give one of toy_sxm',
    (*IMPORT[:2], "--model", "nobody", "--gpu", "toy"): 'no model "nobody"; give one of llama3-8b',
    (*IMPORT, "--tensor-parallel", "3"): "degree 3: does not divide the 8 heads of toy/llama; give one of 1, 2, 4, 8",
    (*IMPORT, "--tensor-parallel", "two"): "--tensor-parallel two: 'two' is no degree; write a whole number",
    (*IMPORT, "--sequence", "0"): "--sequence 0: give the tokens",
    (*IMPORT, "--dtype", "fp8"): "matrix products in fp8 were not measured; give one of bf16",
    (*IMPORT, "--hosts", "1,2"): "--hosts 1,2: give a number of hosts for each of toy_sxm",
    (*IMPORT, "--hosts", "1", "--cluster", "c.json"): "--cluster and --hosts both name the devices",
    (*IMPORT, "-m", "4", "--global-batch", "8"): "--num-microbatches and --global-batch",
    ("import", "demo:bert32-a100", "--gpu", "toy"): "belong to `import aiconfigurator`",
}


@pytest.mark.parametrize("words", REFUSALS)
def test_refusals(shell: Shell, installed: Path, words: tuple[str, ...]):
    """Tests that what cannot be put together is refused in one sentence that lists what there is."""
    outcome = shell.run(*words)
    assert outcome.code == 2
    assert REFUSALS[words] in " ".join(outcome.err.split())


def test_without_the_package(shell: Shell, monkeypatch: pytest.MonkeyPatch):
    """Tests that a missing package is answered with how to install it."""
    find_package.cache_clear()
    monkeypatch.setattr("profiles.importers.aiconfigurator.tables.PACKAGE", "aiconfigurator_core_that_is_absent")
    outcome = shell.run(*IMPORT)
    assert outcome.code == 2
    assert "not installed: pip install 'pipeline-planner[tables]'" in " ".join(outcome.err.split())
    find_package.cache_clear()


def test_a_global_batch_is_stated(shell: Shell):
    """Tests that an imported workload may state a global batch instead of its microbatches, but not both."""
    outcome = shell.run("import", "demo:alexnet-two-gpus", "--global-batch", "512")
    assert outcome.code == 0, outcome.err
    document = json.loads(outcome.out)
    assert (document["global_batch_size"], "num_microbatches" in document) == (512, False)
    outcome = shell.run("import", "demo:alexnet-two-gpus", "--global-batch", "512", "-m", "2")
    assert outcome.code == 2
    assert "both state the size of an iteration" in outcome.err


@pytest.mark.parametrize("option", [("-m", "4"), ("--global-batch", "8"), ("--device-type", "x")])
@pytest.mark.parametrize("source", ["trace", "solution", "sailor"])
def test_what_would_be_ignored_is_refused(source: str, option: tuple[str, str], shell: Shell):
    """Tests that traces, solutions and Sailor's profiles take no option that only a workload has."""
    outcome = shell.run("import", source, "file", *option)
    assert outcome.code == 2
    assert f"`import {source}` does not take it; leave it out" in outcome.err
