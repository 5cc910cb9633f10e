"""What users want otherwise in a manifest, and what is said of a patch that does not fit."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from api.running.patch_files import read_patches
from planner.launch.kubernetes import plan_path, render_kubernetes
from planner.launch.manifest_patch import ManifestPatch
from planner.option_values import Controller
from tests.planner.launch.test_kubernetes import NEEDS, PLAN
from tests.planner.launch.test_torchrun import make_job

kubernetes_validate = pytest.importorskip("kubernetes_validate")

EXAMPLES = Path(__file__).parents[3] / "examples" / "patches"


def patched(*patches: Any, kind: Controller = "jobset", placement: str = "2 0 3") -> dict[str, Any]:
    """The job of two hosts under patches."""
    given = [ManifestPatch(source=f"p{number}", document=patch) for number, patch in enumerate(patches)]
    return render(given, kind=kind, placement=placement)


def render(patches: Any, *, kind: Controller = "jobset", placement: str = "2 0 3") -> dict[str, Any]:
    job = make_job(placement, plan_at=plan_path(PLAN))
    done = render_kubernetes(job, kind=kind, needs=NEEDS, plan_text=PLAN, folder="/job", patches=patches)
    found: dict[str, Any] = json.loads(done.files["job.json"])["items"][1]
    return found


def pods(job: dict[str, Any]) -> list[dict[str, Any]]:
    """The pod templates of a JobSet or of a Volcano job."""
    if job["kind"] == "Job":
        return [task["template"] for task in job["spec"]["tasks"]]
    return [one["template"]["spec"]["template"] for one in job["spec"]["replicatedJobs"]]


def require_valid(pod: dict[str, Any]) -> None:
    """Kubernetes' own schema takes the pod, and knows every field."""
    whole = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "x"} | pod.get("metadata", {}),
        "spec": pod["spec"],
    }
    kubernetes_validate.validate(whole, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("kind", ["jobset", "volcano"])
@pytest.mark.parametrize("name", ["shared-memory", "checkpoints", "tolerations", "rdma"])
def test_examples_are_pods_that_kubernetes_knows(name: str, kind: Controller):
    """Tests that each example of the launch page changes every host's pod, which still runs the program on its node."""
    plain, job = render((), kind=kind), render(read_patches([str(EXAMPLES / f"{name}.yaml")]), kind=kind)
    for before, pod in zip(pods(plain), pods(job), strict=True):
        require_valid(pod)
        assert pod != before
        (old,), (container,) = before["spec"]["containers"], pod["spec"]["containers"]
        assert container["command"] == old["command"]
        assert container["volumeMounts"][0]["name"] == "plan"
        assert pod["spec"]["nodeSelector"] == before["spec"]["nodeSelector"]


def test_one_host_may_differ():
    """Tests that a pod patch with a name is merged over that host alone."""
    labels = {"metadata": {"name": "host1", "labels": {"a": "b"}}}
    first, second = pods(patched({"kind": "Pod"} | labels))
    assert "metadata" not in first
    assert second["metadata"] == {"labels": {"a": "b"}}


CONTAINER = {"name": "rank"}
WRONG = [
    ([1], "p0: '[1]' is not an object; write kind: Pod"),
    ({}, "p0: kind: None is not in this job; write one of Pod, ConfigMap, JobSet"),
    ({"kind": "Deployment"}, "p0: kind: 'Deployment' is not in this job"),
    ({"kind": "JobSet", "apiVersion": "v1"}, "'v1' is not a JobSet's here; write 'jobset.x-k8s.io/v1alpha2'"),
    (
        {"kind": "Pod", "spec": {"toleration": []}},
        "p0.spec: a pod has no field 'toleration' (its value is []); did you",
    ),
    (
        {"kind": "Pod", "spec": {"tolerations": {"key": "a"}}},
        "p0.spec.tolerations: {'key': 'a'} is not a list; begin each",
    ),
    ({"kind": "Pod", "spec": []}, "p0.spec: [] is not a mapping; write its fields as NAME: VALUE"),
    (
        {"kind": "Pod", "spec": {"containers": [CONTAINER | {"env": [{"name": "N", "value": 1}]}]}},
        'p0.spec.containers[rank].env[N].value: 1 is not a string; write value: "1"',
    ),
    (
        {"kind": "Pod", "spec": {"containers": [CONTAINER | {"tty": "yes"}]}},
        "p0.spec.containers[rank].tty: 'yes' is not a boolean; give a boolean",
    ),
    ({"kind": "Pod", "spec": {"containers": [{"image": "i"}]}}, "p0 (host0).spec.containers[0]: has no name, by which"),
    (
        {"kind": "Pod", "spec": {"containers": [{"name": "rnak"}]}},
        "host0: containers[rnak] has no image; the program's",
    ),
    (
        {"kind": "Pod", "spec": {"containers": [{"name": "rank", "$patch": "delete"}]}},
        "host0: the patches leave no container 'rank', which runs the program; keep it",
    ),
    (
        {"kind": "Pod", "metadata": {"name": "h7"}},
        "p0: metadata.name: 'h7' is not a pod of this job; give one of host0, host1",
    ),
    (
        {"kind": "Pod", "spec": {"volumes": [{"$patch": "drop"}]}},
        "p0.spec.volumes[0].$patch: 'drop' is unknown; write replace",
    ),
    ({"kind": "Pod", "spec": {"$setElementOrder/env": []}}, "p0.spec: $setElementOrder/env is not supported"),
    ({"kind": "JobSet", "metadata": {"name": "other"}}, "p0: metadata.name: 'other'; use --name"),
    ({"kind": "JobSet", "metadata": {"namespace": None}}, "p0: metadata.namespace: None; use --namespace"),
    ({"kind": "JobSet", "spec": {"network": 1}}, "p0.spec.network: 1 where a mapping is; write it as one, or null"),
    ({"kind": "JobSet", "spec": {"replicatedJobs": None}}, "the patches leave a JobSet without pods"),
]


@pytest.mark.parametrize(("document", "message"), WRONG, ids=[message[:40] for _, message in WRONG])
def test_a_wrong_patch_is_one_message(document: Any, message: str):
    """Tests that file, field, value and remedy are named."""
    with pytest.raises(ValueError, match=re.escape(message)):
        patched(document)


def in_pod(**spec: Any) -> dict[str, Any]:
    return {"kind": "Pod", "spec": spec}


def in_rank(**fields: Any) -> dict[str, Any]:
    return in_pod(containers=[CONTAINER | fields])


def limits(**amounts: Any) -> dict[str, Any]:
    return in_rank(resources={"limits": {name.replace("__", "/").replace("_", "."): v for name, v in amounts.items()}})


VALUES = [
    (
        in_pod(restartPolicy="Nevr"),
        "p0.spec.restartPolicy: 'Nevr' is none of Always, OnFailure, Never; did you mean Never?",
    ),
    (in_pod(restartPolicy="Always"), "host0: restartPolicy: 'Always' is not for the pods of a job; write OnFailure"),
    (
        in_rank(volumeMounts=[{"name": "data", "mountPath": "/data"}]),
        "host0: containers[rank].volumeMounts[/data].name: 'data' is not a volume of the pod; add it to volumes",
    ),
    (in_pod(dnsPolicy="clusterfirst"), "p0.spec.dnsPolicy: 'clusterfirst' is none of"),
    (
        in_rank(imagePullPolicy="Sometimes"),
        "imagePullPolicy: 'Sometimes' is none of Always, Never, IfNotPresent",
    ),
    (in_rank(ports=[{"containerPort": 80, "protocol": "tcp"}]), "protocol: 'tcp' is none of TCP, UDP, SCTP"),
    (in_rank(ports=[{"containerPort": 70000}]), "containerPort: 70000 is not a port; give 1 to 65535"),
    (in_pod(tolerations=[{"key": "a", "operator": "Exist"}]), "tolerations[0].operator: 'Exist' is none of"),
    (in_pod(volumes=[{"name": "v", "hostPath": {"path": "/d", "type": "Dir"}}]), "type: 'Dir' is none of"),
    (in_pod(volumes=[{"name": "My_Volume", "emptyDir": {}}]), "volumes[My_Volume].name: 'My_Volume' is not a name"),
    (in_pod(terminationGracePeriodSeconds=-1), "p0.spec.terminationGracePeriodSeconds: -1 is negative; give 0 or more"),
    (in_pod(nodeSelector={"zone": "a b"}), "p0.spec.nodeSelector.zone: 'a b' is not a label's value"),
    (
        limits(nvidia_com__gpu="two"),
        "resources.limits.nvidia.com/gpu: 'two' is not a quantity; give a number",
    ),
    (limits(nvidia_com__gpu="1500m"), "nvidia.com/gpu: '1500m' is not a whole number of devices"),
    (limits(nvidia_com__gpu=1.5), "nvidia.com/gpu: 1.5 is not a whole number of devices"),
    (limits(memory="64GB"), "resources.limits.memory: '64GB' is not a quantity"),
    (limits(cpu="-1"), "resources.limits.cpu: '-1' is not a quantity"),
    (in_pod(volumes=[{"name": "v", "emptyDir": {"sizeLimit": "64 Gi"}}]), "sizeLimit: '64 Gi' is not a quantity"),
]


@pytest.mark.parametrize(("document", "message"), VALUES, ids=[message[:40] for _, message in VALUES])
def test_a_value_that_kubernetes_would_refuse_is_one_message(document: Any, message: str):
    """Tests that choices, quantities, ports, names and labels are held against what Kubernetes takes."""
    with pytest.raises(ValueError, match=re.escape(message)):
        patched(document)


@pytest.mark.parametrize("amount", [2, "2", "2000m", "2e0", "2k", "1Ki", "0.5k"])
def test_every_form_of_a_whole_number_of_devices_is_taken(amount: Any):
    """Tests that what counts whole devices in Kubernetes' grammar is written as it stands, from a file in a folder."""
    patch = ManifestPatch(source="folder/p.yaml", document=limits(nvidia_com__gpu=amount, cpu="500m"))
    spec = pods(render([patch]))[0]["spec"]
    assert spec["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": amount, "cpu": "500m"}


@pytest.mark.parametrize("amount", ["2", 2, "500m", "1.5", ".5", "64Gi", "128974848", "129e6", "129M", "1E", "0"])
def test_every_form_of_a_quantity_is_taken(amount: Any):
    """Tests that what Kubernetes' grammar of quantities allows is written as it stands."""
    job = patched(limits(memory=amount), in_pod(restartPolicy="OnFailure"))
    spec = pods(job)[0]["spec"]
    assert spec["containers"][0]["resources"]["limits"]["memory"] == amount
    assert spec["restartPolicy"] == "OnFailure"
