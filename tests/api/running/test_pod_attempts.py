"""Jobs on Kubernetes that lose nodes and processes, on a cluster of files that answers as a real one."""

import json
import os
import shutil
import sys
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import api.running.healing
import api.running.pod_attempts
from api.cli import main
from api.running.pod_attempts import PodPace
from planner.document import parse_plan, render_plan
from planner.execute.record.rank_record import RankRecord
from planner.execute.record.resumption_record import Resumption
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
    monkeypatch.setattr(api.running.pod_attempts, "PodPace", lambda: PodPace(poll_s=0.0, settle_s=0.5, gone_s=60.0))
    (tmp_path / "state").mkdir()
    made = Cluster(state=tmp_path / "state")
    made.write("nodes.json", dict.fromkeys(("n0", "n1", "n2", "another"), "True"))
    return made


def report(plan_text: str, device: str, *, code: int | None) -> str:
    """What the process of a device leaves in its pod's termination message, behind what somebody else has written.

    Without a code its parent has vanished with it.
    """
    rank = list(parse_plan(plan_text.encode()).devices).index(device)
    record = RankRecord(rank=rank, device=device, host=device.replace("d", "n"), machine="pod", process=1, started=1)
    ended = asdict(record) | {"state": "ended", "code": code, "at_ns": 5}
    gone_on = asdict(Resumption(iteration=35, source="checkpoint", storage_bytes=7))
    lines = [asdict(record), *([] if code is None else [ended, gone_on])]
    return "\n".join(["not ours", *map(json.dumps, lines)])


def launch(*more: str, controller: str = "jobset") -> int:
    """`pipeplan launch kubernetes --heal`."""
    words = ["launch", "kubernetes", "plan.json", "--image", "i", "--folder", "job", "--controller", controller]
    return main([*words, *HOSTS, "--heal", "--heal-time-limit", "0.5", "--json", *more, "--", *PROGRAM])


def pods_of(job: dict[str, Any]) -> list[dict[str, Any]]:
    """The specifications of a job's pods."""
    if job["kind"] == "Job":
        return [each["template"]["spec"] for each in job["spec"]["tasks"]]
    return [each["template"]["spec"]["template"]["spec"] for each in job["spec"]["replicatedJobs"]]


def node_affinity(pod: dict[str, Any]) -> object:
    """What a pod asks of its node's name."""
    required = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return required["nodeSelectorTerms"]


LOSSES = [("node not ready", "jobset"), ("drained", "volcano")]
ALL_LOSSES = list(product(("node not ready", "node gone", "drained"), ("jobset", "volcano")))


@pytest.mark.parametrize(("what", "controller"), shortened(LOSSES, whole=ALL_LOSSES))
def test_a_job_goes_on_without_a_lost_node(
    what: str, controller: str, cluster: Cluster, capsys: pytest.CaptureFixture[str]
):
    """Tests that when a node dies, goes or is drained, the job is taken away and goes on, by itself, on the others.

    Tests that plan, recipe and whole cluster come along, that no pod may be put on that node, that pods of the old
    job which hang on it are not taken for the new one's, and that nobody else restarts the job.
    """
    end = {"after": 3, "what": "succeeded"}
    cluster.write("script.json", [{"after": 3, "what": what, "host": "n0"}, end])
    assert launch(controller=controller) == 0
    told = capsys.readouterr()
    (heal,) = json.loads(told.out)["heals"]
    assert list(heal["lost"]) == ["d0"]
    assert heal["finds_checkpoint"]
    assert heal["cost"]["steps_left"] == 100
    assert "goes on from the newest checkpoint that it finds on" in told.err
    assert cluster.calls == ["apply", "logs", "delete", "apply"]
    config, job = json.loads(Path("job/job.json").read_text())["items"]
    assert "d0" not in parse_plan(config["data"]["plan.json"].encode()).devices
    assert json.loads(config["data"]["recipe.json"])["format"] == "pipeline-recipe/1"
    assert [each["name"] for each in json.loads(config["data"]["cluster.json"])["devices"]] == ["d0", "d1", "d2"]
    for pod in pods_of(job):
        assert pod["nodeSelector"]["kubernetes.io/hostname"] in ("n1", "n2")
        terms = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n0"]}]}]
        assert node_affinity(pod) == terms
        command = " ".join(pod["containers"][0]["command"])
        assert "--cluster /etc/pipeplan/cluster.json" in command
        assert "--report /dev/termination-log" in command
        assert "--recipe /etc/pipeplan/recipe.json" in command
    spec = job["spec"]
    assert spec["maxRetry"] == 0 if controller == "volcano" else spec["failurePolicy"] == {"maxRestarts": 0}
    assert not spec.get("policies")


@pytest.mark.parametrize("code", [-9, None], ids=["killed", "vanished"])
def test_a_job_goes_on_without_a_killed_process(
    code: int | None,
    cluster: Cluster,
    plan_text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    """Tests that a process that was killed loses its device, by its pod's termination message.

    Tests that no node is avoided then, since its other devices may be in use, and that pods say how they went on.
    """
    monkeypatch.setattr(api.running.healing, "SILENCE_S", 0.1)
    message, last = report(plan_text, "d1", code=code), report(plan_text, "d2", code=0)
    script = [{"after": 2, "what": "ended", "host": "n1", "code": 1, "message": message}]
    cluster.write("script.json", [*script, {"after": 2, "what": "succeeded", "message": last}])
    assert launch() == 0
    (heal,) = json.loads(capsys.readouterr().out)["heals"]
    assert (heal["iteration"], heal["source"], heal["storage_bytes"]) == (35, "checkpoint", 7)
    rank = list(parse_plan(plan_text.encode()).devices).index("d1")
    assert heal["lost"] == {"d1": f"rank {rank} {'vanished from' if code is None else 'was killed on'} n1"}
    _, job = json.loads(Path("job/job.json").read_text())["items"]
    assert all("affinity" not in pod for pod in pods_of(job))


@pytest.mark.parametrize("has_reported", shortened([True], whole=[True, False]))
def test_a_program_that_fails_is_not_healed(
    has_reported: bool, cluster: Cluster, plan_text: str, capsys: pytest.CaptureFixture[str]
):
    """Tests that an error of the program ends the job, which is taken away, with its log kept."""
    message = report(plan_text, "d2", code=3) if has_reported else ""
    cluster.write("script.json", [{"after": 2, "what": "ended", "host": "n2", "code": 1, "message": message}])
    assert launch() == 1
    told = json.loads(capsys.readouterr().out)
    assert told["heals"] == []
    assert f"(d2) ended by itself with exit code {3 if has_reported else 1}" in told["reason"]
    assert cluster.calls == ["apply", "logs", "delete"]
    assert cluster.jobs == []
    assert Path("job/attempt-0/log").read_text() == "what the pods said\n"


def test_a_pod_that_is_killed_as_a_whole_is_lost(cluster: Cluster, capsys: pytest.CaptureFixture[str]):
    """Tests that a pod that ended by SIGKILL without a word has lost its node's devices."""
    script = [
        {"after": 2, "what": "ended", "host": "n2", "code": 137, "message": ""},
        {"after": 2, "what": "succeeded"},
    ]
    cluster.write("script.json", script)
    assert launch() == 0
    (heal,) = json.loads(capsys.readouterr().out)["heals"]
    assert list(heal["lost"]) == ["d2"]


@pytest.mark.parametrize(
    ("options", "program", "message"),
    [
        (["--controller", "trainjob"], PROGRAM, "give --controller jobset or volcano"),
        (["--plan-url", "https://plans/1"], PROGRAM, "--plan-url serves one fixed plan"),
        ([], PROGRAM[:-1], "add --resume to the program"),
        ([], [*PROGRAM, "--copy-every", "1"], "leave --copy-every out"),
        ([], [*PROGRAM[:6], *PROGRAM[8:]], "--checkpoint FOLDER"),
    ],
)
def test_what_pods_cannot_go_on_from_is_refused(
    options: list[str], program: list[str], message: str, cluster: Cluster, capsys: pytest.CaptureFixture[str]
):
    """Tests that a job which could not be kept going on Kubernetes is not begun, with a remedy."""
    words = ["launch", "kubernetes", "plan.json", "--image", "i", "--folder", "job", "--heal", *options]
    assert main([*words, *HOSTS, "--", *program]) == 2
    assert message in capsys.readouterr().err
    assert not (cluster.state / "calls").exists()


def test_a_dry_run_shows_how_it_begins(cluster: Cluster, capsys: pytest.CaptureFixture[str]):
    """Tests that what would be applied is printed, and nothing is asked."""
    assert launch("--dry-run") == 0
    said = capsys.readouterr().out
    assert '"failurePolicy": {"maxRestarts": 0}' in said
    assert '"cluster.json": ' in said
    assert not (cluster.state / "calls").exists()


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
