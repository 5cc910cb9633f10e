"""Manifests as data; checked against Kubeflow's published models of JobSet, TrainJob and pods where they can be had."""

import base64
import gzip
import importlib
import json
import re
from typing import Any

import pytest
import yaml

from planner.launch.kubernetes import (
    MAX_CONFIG_BYTES,
    PodNeeds,
    plan_path,
    render_kubernetes,
)
from planner.launch.launch_job import make_job_name
from planner.option_values import Controller
from tests.planner.export.test_targets import PARSERS
from tests.planner.launch.test_torchrun import HOSTILE, make_job

NEEDS = PodNeeds(image="registry/trainer:1", namespace="team", with_gpus=True)
PLAN = '{"format": "pipeline-plan/1"}'


def manifest(
    kind: Controller = "jobset", *, needs: PodNeeds = NEEDS, plan: str | None = PLAN, **changes: Any
) -> list[Any]:
    changes = {"plan_at": plan_path(plan or "")} | changes
    job = make_job(changes.pop("placement", "2 0 3"), **changes)
    submission = render_kubernetes(job, kind=kind, needs=needs, plan_text=plan, folder="/job")
    (command,) = submission.commands
    assert command.render() == "kubectl apply --filename /job/job.json"
    document = json.loads(submission.files["job.json"])
    assert (document["apiVersion"], document["kind"]) == ("v1", "List")
    return document["items"]


def model(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A class of kubeflow-trainer-api; None where the package was not unpacked (`make parsers`)."""
    if not (PARSERS / "kubeflow_trainer_api").exists():
        return None
    monkeypatch.syspath_prepend(str(PARSERS))
    return getattr(importlib.import_module("kubeflow_trainer_api.models"), name)


def require_known(item: Any, name: str, monkeypatch: pytest.MonkeyPatch, record_property: Any) -> None:
    """Every field is one that the published model knows, with a value of its type: nothing is lost on the way."""
    theirs = model(name, monkeypatch)
    record_property("schema", "the fields listed in this test" if theirs is None else f"kubeflow-trainer-api {name}")
    if theirs is not None:
        assert json.loads(theirs.from_json(json.dumps(item)).to_json()) == item


def test_a_job_set_pins_every_host(monkeypatch, record_property):
    """Tests that each host has a replicated job with its node, rank, size and accelerators, beside the plan."""
    config, job = manifest()
    assert config["data"] == {"plan.json": PLAN}
    assert (config["metadata"]["name"], config["metadata"]["namespace"]) == ("job-plan", "team")
    first, second = job["spec"]["replicatedJobs"]
    pod = first["template"]["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"kubernetes.io/hostname": "b"}
    (container,) = pod["containers"]
    assert container["command"] == [
        *("python3", "-m", "planner.execute.run.agent", "--nnodes=2", "--node-rank=0", "--nproc-per-node=2"),
        *("--master-addr=job-host0-0-0.job", "--master-port=29500"),
        *("-m", "planner.execute.enter", "/etc/pipeplan/plan.json", "--sha256", "f00d"),
        *("--", "train.py", "--steps", "3"),
    ]
    assert container["env"] == [{"name": "PLAN_NODE", "value": "b"}]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": "3"}}
    assert container["volumeMounts"] == [{"name": "plan", "mountPath": "/etc/pipeplan", "readOnly": True}]
    assert pod["volumes"] == [{"name": "plan", "configMap": {"name": "job-plan"}}]
    other = second["template"]["spec"]["template"]["spec"]
    assert other["nodeSelector"] == {"kubernetes.io/hostname": "a"}
    assert other["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": "1"}}
    require_known(config, "IoK8sApiCoreV1ConfigMap", monkeypatch, record_property)
    require_known(job, "JobsetV1alpha2JobSet", monkeypatch, record_property)


def as_started(command: list[str], **variables: str) -> list[str]:
    """What a container gets of its command, by the rule in Kubernetes' reference of `command`."""
    told = re.compile(r"\$(?:(\$)|\(([^)]*)\))")
    return [told.sub(lambda found: found[1] or variables.get(found[2], found[0]), word) for word in command]


@pytest.mark.parametrize("kind", ["jobset", "trainjob", "volcano"])
def test_words_of_the_program_arrive_as_they_were_given(kind: Controller):
    """Tests that neither dollars nor names of variables in brackets are read by Kubernetes, whatever stands in them."""
    words = ("train.py", "--run=$(PLAN_NODE)", "$$(X)", "^a$$", "$HOME", "$", "$(date)", "${A:-b}", "\u7b56", "")
    _, job = manifest(kind, placement="2 0", program=words)
    (command, *_) = commands_of(job)
    assert "$(PLAN_NODE)" in str(words)
    assert tuple(as_started(command, PLAN_NODE="b", date="now"))[-len(words) :] == words


def commands_of(tree: Any) -> list[list[str]]:
    """Every container's command in a manifest."""
    if isinstance(tree, list):
        return [found for part in tree for found in commands_of(part)]
    if not isinstance(tree, dict):
        return []
    own = [tree["command"]] if "command" in tree else []
    return own + [found for part in tree.values() for found in commands_of(part)]


def test_a_train_job_leaves_pods_to_their_rules(monkeypatch, record_property):
    """Tests that a TrainJob spreads equal pods over the plan's hosts, whose processes find their seats themselves."""
    _, job = manifest("trainjob", placement="2 0")
    spec = job["spec"]
    assert (spec["trainer"]["numNodes"], spec["trainer"]["numProcPerNode"]) == (2, 1)
    assert spec["trainer"]["command"][:3] == ["torchrun", "-m", "planner.execute.enter"]
    assert spec["trainer"]["env"][0]["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
    assert spec["trainer"]["resourcesPerNode"] == {"limits": {"nvidia.com/gpu": "2"}}
    (patch,) = spec["runtimePatches"]
    (node,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod = node["template"]["spec"]["template"]["spec"]
    (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"][0]["values"] == ["b", "a"]
    require_known(job, "TrainerV1alpha1TrainJob", monkeypatch, record_property)
    with pytest.raises(ValueError, match="every host, but the plan 1 to 2; use --controller jobset"):
        manifest("trainjob")


def test_a_volcano_job_starts_all_or_none(monkeypatch, record_property):
    """Tests that Volcano gets a task per host that must start together, with pods like those of a JobSet."""
    _, job = manifest("volcano")
    _, job_set = manifest()
    assert (job["apiVersion"], job["spec"]["minAvailable"]) == ("batch.volcano.sh/v1alpha1", 2)
    assert [task["name"] for task in job["spec"]["tasks"]] == ["host0", "host1"]
    assert {(rule["event"], rule["action"]) for rule in job["spec"]["policies"]} == {
        ("PodEvicted", "RestartJob"),
        ("PodFailed", "RestartJob"),
    }
    pod = job["spec"]["tasks"][1]["template"]["spec"]
    assert "--master-addr=job-host0-0.job" in pod["containers"][0]["command"]
    assert (
        pod["nodeSelector"]
        == job_set["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]["spec"]["nodeSelector"]
    )
    require_known(pod, "IoK8sApiCoreV1PodSpec", monkeypatch, record_property)


@pytest.mark.parametrize(
    ("kind", "limit"),
    [
        ("jobset", 63 - len("-host1-0-0-abcde")),
        ("trainjob", 63 - len("-node-0-1-abcde")),
        ("volcano", 63 - len("-host1-0")),
    ],
)
def test_names_are_those_that_webhooks_take(kind: Controller, limit: int):
    """Tests that a name is refused where pods' names would pass 63 characters, and where it begins with a digit."""
    assert limit == {"jobset": 47, "trainjob": 48, "volcano": 55}[kind]
    longest = "n" * min(limit, 52)
    *_, job = manifest(kind, placement="2 0", name=longest)
    assert job["metadata"]["name"] == longest
    for name in ("8gpu", *(["n" * (limit + 1)] if limit < 52 else [])):
        with pytest.raises(
            ValueError, match=f"needs one of at most {limit} characters that begins with a letter; give"
        ):
            manifest(kind, placement="2 0", name=name)


@pytest.mark.parametrize("text", ["8 GPUs", "x" * 99, "", "---", "Ünï"])
def test_made_names_fit_a_thousand_hosts(text: str):
    """Tests that a name made of any text begins with a letter, keeps its hash and leaves room for indices."""
    name = make_job_name(text, suffix="0123abcd")
    assert re.fullmatch("[a-z][a-z0-9-]*-0123abcd", name)
    assert len(f"{name}-host9999-0-0-abcde") <= 63


def test_large_plans_are_compressed_or_fetched():
    """Tests that a plan beyond a ConfigMap is gzipped, one beyond that refused, and an address needs neither."""
    large = "0F0, " * (MAX_CONFIG_BYTES // 4)
    (config, job) = manifest(plan=large)
    (data,) = config["binaryData"].values()
    assert gzip.decompress(base64.b64decode(data)).decode() == large
    assert "/etc/pipeplan/plan.json.gz" in json.dumps(job)
    import random

    noise = random.Random(0).randbytes(MAX_CONFIG_BYTES).hex()
    with pytest.raises(ValueError, match="put the plan where pods can fetch it and give --plan-url"):
        manifest(plan=noise)
    (alone,) = manifest(plan=None, plan_at="https://plans/1")
    assert "volumes" not in json.dumps(alone)
    assert "https://plans/1" in json.dumps(alone)


def test_hostile_words_stay_words():
    """Tests that arguments arrive as they were given, and that a host that is no node's name is refused."""
    _, job = manifest(program=(HOSTILE, "\n", "${X}"))
    command = job["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]["command"]
    assert as_started(command)[-3:] == [HOSTILE, "\n", "${X}"]
    with pytest.raises(ValueError, match="cannot be the name of a node"):
        manifest(host_names={"b": "b: {x}"})


@pytest.mark.parametrize(
    "needs",
    [{"namespace": "Team_A"}, {"namespace": ""}, {"image": "my image"}, {"image": "registry/Trainer:1"}, {"image": ""}],
)
def test_names_that_kubernetes_refuses(needs: dict[str, str]):
    """Tests that a namespace or image that no cluster takes is refused here, by its option."""
    with pytest.raises(ValueError, match=f"--{next(iter(needs))} "):
        manifest(needs=PodNeeds(**({"image": "registry:5000/trainer@sha256:ab"} | needs)))


def test_every_reader_of_yaml_reads_the_manifest():
    """Tests that letters that end lines in YAML, or that it refuses, come out of another reader as they went in."""
    odd = "a\x7f\x85 \u2028 b\ufeff\uffff é \U0001f600"
    submission = render_kubernetes(make_job(program=(odd,)), kind="jobset", needs=NEEDS, plan_text=odd, folder="/job")
    text = submission.files["job.json"]
    assert yaml.safe_load(text) == json.loads(text)
    assert json.loads(text)["items"][0]["data"] == {"plan.json": odd}
    assert "é \U0001f600" in text
