"""`job heal` of a job on Kubernetes that lost a node, on a cluster of files that answers as a real one."""

import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from api.cli import main
from planner.document import parse_plan, render_plan
from planner.planning import make_plan
from planner.problem import Options
from planner.progress import Limits
from tests.api.listening import listening
from tests.long_runs import shortened
from tests.planner.export.chains import make_chain

PROGRAM = ["-m", "planner.execute", "--model", "m:f", "--steps", "100", "--checkpoint", "/kept"]
PROGRAM += ["--checkpoint-every", "5", "--resume"]
HOSTS = ["--host", "d0=n0", "--host", "d1=n1", "--host", "d2=n2"]


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A Kubernetes of files."""

    state: Path

    def write(self, name: str, value: object) -> None:
        (self.state / name).write_text(json.dumps(value))

    @property
    def calls(self) -> list[str]:
        """What `kubectl` was asked, looks at pods and nodes aside."""
        lines = (self.state / "calls").read_text().splitlines()
        return [line for line in lines if line not in ("get pods", "get nodes")]

    @property
    def jobs(self) -> list[str]:
        """What there is."""
        return sorted(json.loads((self.state / "objects.json").read_text()))


@pytest.fixture(scope="module")
def plan_text() -> str:
    """Three stages, each on a host of its own."""
    options = Options(max_replicas=1, skip_edges=False, max_stages_per_device=1, idle_devices=False)
    problem = make_chain("wwwwww", num_devices=3, num_microbatches=4, options=options)
    plan = make_plan(problem, limits=Limits(time_limit_s=60, max_rounds=1))
    assert sorted(plan.devices) == ["d0", "d1", "d2"]
    return render_plan(plan)


@pytest.fixture
def cluster(tmp_path: Path, plan_text: str, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Three nodes that are ready, and `kubectl` on the path."""
    (tmp_path / "plan.json").write_text(plan_text)
    monkeypatch.chdir(tmp_path)
    kubectl = tmp_path / "bin" / "kubectl"
    kubectl.parent.mkdir()
    shutil.copy(Path(__file__).parents[2] / "integration/fake_kubectl.py", kubectl.with_suffix(".py"))
    kubectl.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E {kubectl}.py "$@"\n')
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{kubectl.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("KUBE_STATE", str(tmp_path / "state"))
    (tmp_path / "state").mkdir()
    made = Cluster(state=tmp_path / "state")
    made.write("nodes.json", dict.fromkeys(("n0", "n1", "n2", "another"), "True"))
    return made


def pods_of(job: dict[str, Any]) -> list[dict[str, Any]]:
    """The specifications of a job's pods."""
    if job["kind"] == "Job":
        return [each["template"]["spec"] for each in job["spec"]["tasks"]]
    return [each["template"]["spec"]["template"]["spec"] for each in job["spec"]["replicatedJobs"]]


@pytest.mark.parametrize("names", shortened([[]], whole=[[], ["--lost", "n0"]]))
def test_pods_are_healed_by_hand(
    names: list[str], cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Tests that `job heal` deletes the job and applies one without the lost host, with recipe and plan beside it.

    Tests that without a name Kubernetes says which, and that the service whose plan it is hears what was lost.
    """
    words = ["launch", "kubernetes", "plan.json", "--image", "i", "--folder", "job", *HOSTS, "--", *PROGRAM]
    assert main(words[:-1]) == 0
    assert main(["job", "heal", "job", "--lost", "n0"]) == 2
    assert "add --resume to the program" in capsys.readouterr().err
    words[words.index("job")] = "job 2"
    (cluster.state / "objects.json").unlink()
    assert main(words) == 0
    cluster.write("nodes.json", {"n0": "True" if names else "False", "n1": "True", "n2": "True"})
    (cluster.state / "calls").unlink()
    with listening() as service:
        monkeypatch.setenv("PIPEPLAN_NOTIFY", f"http://127.0.0.1:{service.port}/?plan={'0' * 32}")
        assert main(["job", "heal", "job 2", *names, "--heal-time-limit", "0.5"]) == 0
    assert [json.loads(body) for _, body in service.heard] == [{"event": "device_lost", "detail": {"lost": ["d0"]}}]
    assert cluster.calls == ["delete", "apply"]
    assert "goes on from the newest checkpoint that the job finds on" in capsys.readouterr().out
    config, job = json.loads(Path("job 2/job.json").read_text())["items"]
    assert json.loads(config["data"]["recipe.json"])["format"] == "pipeline-recipe/1"
    assert "d0" not in parse_plan(config["data"]["plan.json"].encode()).devices
    assert {pod["nodeSelector"]["kubernetes.io/hostname"] for pod in pods_of(job)} == {"n1", "n2"}
    assert "--recipe /etc/pipeplan/recipe.json" in " ".join(pods_of(job)[0]["containers"][0]["command"])
