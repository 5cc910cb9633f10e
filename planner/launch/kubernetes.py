"""A plan through Kubernetes: a JobSet, a Kubeflow TrainJob or a Volcano job, with the plan in a ConfigMap.

Manifests are JSON, which every reader of YAML reads: all quoting is the json library's, but for letters that YAML takes
for ends of lines, or refuses.
"""

import base64
import gzip
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from planner.execute.table.placement import HOST_VARIABLES
from planner.launch.device_resources import require_accelerators, resource_of
from planner.launch.kueue import MAX_POD_SETS, QUEUE_LABEL, KueueQueue, indexed_command, split_pod_sets
from planner.launch.launch_job import TORCHRUN, Command, LaunchJob, LaunchSubmission, rank_arguments, require_host_names
from planner.launch.manifest_patch import ManifestPatch, patch_manifest
from planner.launch.torchrun import agent_command, agent_options
from planner.option_values import Controller

_PLAN_FOLDER = "/etc/pipeplan"
"""Mount path of the ConfigMap."""
RECIPE_PATH = f"{_PLAN_FOLDER}/recipe.json"
"""Where the pods find the recipe by which they continue, if there is one."""
CLUSTER_PATH = f"{_PLAN_FOLDER}/cluster.json"
"""Where they find the whole cluster, by which devices keep their numbers when others are lost."""
MAX_CONFIG_BYTES = 1_000_000
"""A ConfigMap holds a mebibyte, its other fields included."""
_HOSTNAME = "kubernetes.io/hostname"
"""The label by which a node is chosen."""
_UNSAFE = re.compile(r"[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""Letters that JSON takes as they are and YAML does not."""
WIDTH = 120
"""Characters up to which a piece of a manifest stays on its line."""
PORT = 29500
"""Port of the rendezvous."""
_MAX_LABEL = 63
"""Characters of a name in Kubernetes' DNS: that of a pod has those of its job and its indices in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodNeeds:
    """What the plan does not know about the containers."""

    image: str
    """Container image with torch and this distribution in it."""
    namespace: str = "default"
    """Namespace of all objects."""
    with_gpus: bool = False
    """Ask on every host for as many accelerators as the plan's highest there needs (`device_resources`)."""
    max_restarts: int = 3
    """How often the job starts anew when a host fails."""
    avoided: tuple[str, ...] = ()
    """Nodes that were lost, on which no pod may be put."""
    runtime: str = "torch-distributed"
    """TrainJob only: the ClusterTrainingRuntime."""
    queue: KueueQueue | None = None
    """JobSet only: Kueue chooses the nodes, instead of the plan."""


def render_kubernetes(
    job: LaunchJob,
    *,
    kind: Controller,
    needs: PodNeeds,
    plan_text: str | None,
    folder: str,
    beside: Mapping[str, str] = MappingProxyType({}),
    patches: Sequence[ManifestPatch] = (),
) -> LaunchSubmission:
    """The manifest and the command that submits it.

    `plan_text`: the plan, None if `job.plan_at` is an address that the pods can reach; `beside`: what stands beside it,
    by path (`RECIPE_PATH`, `CLUSTER_PATH`); `patches`: what the user wants otherwise.
    Raises ValueError if these are too large for a ConfigMap even when the plan is compressed, if the controller would
    refuse the name, or for a patch that does not fit.
    """
    if needs.queue is not None and kind != "jobset":
        raise ValueError(f"--kueue: pods of a {kind} are placed on the plan's nodes; use --controller jobset")
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", needs.namespace):
        raise ValueError(f"--namespace {needs.namespace!r} is no name; give one of `kubectl get namespaces`")
    if not re.fullmatch(r"([\w.-]+(:[0-9]+)?/)?[a-z0-9._/-]+(:[\w.-]+)?(@[\w.:+-]+)?", needs.image):
        raise ValueError(f"--image {needs.image!r} is no image; write REGISTRY/name:TAG, the name in lower case")
    _require_name(job.name, kind=kind, num_hosts=len(job.placement.hosts), is_queued=needs.queue is not None)
    require_host_names([job.real_host(host) for host in job.placement.hosts], what="the name of a node")
    make = {"jobset": _job_set, "trainjob": _train_job, "volcano": _volcano_job}[kind]
    items = [make(job, needs)]
    if plan_text is not None:
        named = {path.rpartition("/")[2]: text for path, text in beside.items() if text}
        items.insert(0, _config_map(job, needs, plan_text=plan_text, beside=named))
    manifest = {"apiVersion": "v1", "kind": "List", "items": patch_manifest(items, patches)}
    return LaunchSubmission(
        files={"job.json": render_json(manifest) + "\n"},
        commands=(Command(arguments=("kubectl", "apply", "--filename", f"{folder}/job.json")),),
    )


def _require_name(name: str, *, kind: Controller, num_hosts: int, is_queued: bool) -> None:
    """Raise ValueError for a name that makes the controller's webhook refuse the names of pods or of the service."""
    last = num_hosts - 1
    longest = {
        "jobset": f"{name}-host{MAX_POD_SETS - 1}-0-{last}-abcde" if is_queued else f"{name}-host{last}-0-0-abcde",
        "trainjob": f"{name}-node-0-{last}-abcde",
        "volcano": f"{name}-host{last}-0",
    }[kind]
    limit = _MAX_LABEL - (len(longest) - len(name))
    if len(name) > limit or not re.match(r"[a-z]", name):
        raise ValueError(
            f"job name {name!r}: a {kind} of {num_hosts} hosts needs one of at most {limit} characters that begins "
            "with a letter; give --name"
        )


def render_json(value: Any, *, indent: int = 0) -> str:
    """JSON, what fits on a line on one line."""
    text = _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, ensure_ascii=False))
    if not value or not isinstance(value, dict | list) or len(text) + indent <= WIDTH:
        return text
    pad = " " * (indent + 1)
    if isinstance(value, list):
        items = [pad + render_json(item, indent=indent + 1) for item in value]
        return "[\n" + ",\n".join(items) + f"\n{' ' * indent}]"
    items = [f"{pad}{render_json(key)}: {render_json(item, indent=indent + 1)}" for key, item in value.items()]
    return "{\n" + ",\n".join(items) + f"\n{' ' * indent}}}"


def plan_path(plan_text: str) -> str:
    """Where the pods find the plan: compressed if it would not fit otherwise."""
    return f"{_PLAN_FOLDER}/{_config_key(plan_text)}"


def _config_key(plan_text: str) -> str:
    return "plan.json" if len(plan_text.encode()) <= MAX_CONFIG_BYTES else "plan.json.gz"


def _config_map(job: LaunchJob, needs: PodNeeds, *, plan_text: str, beside: Mapping[str, str]) -> dict[str, Any]:
    key, room = _config_key(plan_text), MAX_CONFIG_BYTES - sum(len(text.encode()) for text in beside.values())
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(job, needs, suffix="-plan")}
    if key == "plan.json" and len(plan_text.encode()) <= room:
        return config | {"data": {key: plan_text, **beside}}
    data = base64.b64encode(gzip.compress(plan_text.encode(), mtime=0)).decode()
    if len(data) > room or key == "plan.json":
        raise ValueError(
            f"the plan has {len(data):,} bytes when compressed, but the ConfigMap has room for {max(0, room):,}; put "
            "the plan where pods can fetch it and give --plan-url"
        )
    return config | ({"data": dict(beside)} if beside else {}) | {"binaryData": {key: data}}


def _metadata(job: LaunchJob, needs: PodNeeds, *, suffix: str = "") -> dict[str, Any]:
    return {
        "name": job.name + suffix,
        "namespace": needs.namespace,
        "annotations": {"pipeplan/plan-sha256": job.plan_sha256},
    }


_FAILURES = ("PodEvicted", "PodFailed")


def _job_set(job: LaunchJob, needs: PodNeeds) -> dict[str, Any]:
    """One replicated job per host, pinned to it, or per set of like pods that Kueue places.

    A host that fails starts all of them anew.
    """
    queue = needs.queue
    metadata = _metadata(job, needs) | ({} if queue is None else {"labels": {QUEUE_LABEL: queue.name}})
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata,
        "spec": {
            "failurePolicy": {"maxRestarts": needs.max_restarts},
            "network": {"enableDNSHostnames": True},
            "replicatedJobs": _pinned_jobs(job, needs) if queue is None else _queued_jobs(job, needs, queue=queue),
        },
    }


def _pinned_jobs(job: LaunchJob, needs: PodNeeds) -> list[dict[str, Any]]:
    master = f"{job.name}-host0-0-0.{job.name}"
    return [
        _replicated(f"host{number}", count=1, template={"spec": _pod(job, needs, number=number, master=master)})
        for number in range(len(job.placement.hosts))
    ]


def _queued_jobs(job: LaunchJob, needs: PodNeeds, *, queue: KueueQueue) -> list[dict[str, Any]]:
    master = f"{job.name}-host0-0-0.{job.name}"
    jobs: list[dict[str, Any]] = []
    first = 0
    for number, pods in enumerate(split_pod_sets(job)):
        command = indexed_command(
            [job.real_host(host) for host in pods.hosts],
            start=(job.python, *TORCHRUN),
            first_node=first,
            then=(*agent_options(job, pods.hosts[0], master=master, port=PORT), *rank_arguments(job)),
        )
        spec = _pod_spec(job, needs, host=pods.hosts[0], command=command)
        template = {"metadata": {"annotations": dict(pods.annotations(queue))}, "spec": spec}
        jobs.append(_replicated(f"host{number}", count=len(pods.hosts), template=template))
        first += len(pods.hosts)
    return jobs


def _replicated(name: str, *, count: int, template: Mapping[str, Any]) -> dict[str, Any]:
    """A job of a JobSet with so many pods, which have no second try of their own."""
    indexed = {"completionMode": "Indexed"} if "metadata" in template else {}
    spec = {"parallelism": count, "completions": count, **indexed, "backoffLimit": 0, "template": template}
    return {"name": name, "replicas": 1, "template": {"spec": spec}}


def _volcano_job(job: LaunchJob, needs: PodNeeds) -> dict[str, Any]:
    """One task per host, all or none; the plugin `svc` gives every pod a name.

    No policy ends the job when a task completes: that would kill hosts that are still saving. Volcano completes it by
    itself when every task has ended and `minAvailable`, here all of them, have succeeded.
    """
    master = f"{job.name}-host0-0.{job.name}"
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": _metadata(job, needs),
        "spec": {
            "schedulerName": "volcano",
            "minAvailable": len(job.placement.hosts),
            "maxRetry": needs.max_restarts,
            "plugins": {"svc": []},
            "policies": [{"event": each, "action": "RestartJob"} for each in _FAILURES],
            "tasks": [
                {
                    "name": f"host{number}",
                    "replicas": 1,
                    "template": {"spec": _pod(job, needs, number=number, master=master)},
                }
                for number in range(len(job.placement.hosts))
            ],
        },
    }


def _pod(job: LaunchJob, needs: PodNeeds, *, number: int, master: str) -> dict[str, Any]:
    """The pod of the host with this number in order of first rank."""
    host = job.placement.hosts[number]
    command = [*agent_command(job, number, master=master, port=PORT), *rank_arguments(job)]
    spec = _pod_spec(job, needs, host=host, command=command)
    spec["containers"][0]["env"] = [{"name": HOST_VARIABLES[0], "value": job.real_host(host)}]
    return spec | {"nodeSelector": {_HOSTNAME: job.real_host(host)}}


def _pod_spec(job: LaunchJob, needs: PodNeeds, *, host: str, command: Sequence[str]) -> dict[str, Any]:
    """A pod with what this host of the plan needs."""
    return {
        "restartPolicy": "Never",
        **_away_from(needs.avoided),
        "containers": [
            {
                "name": "rank",
                "image": needs.image,
                "command": _literal(command),
                "ports": [{"containerPort": PORT, "protocol": "TCP"}],
            }
            | _resources(job, needs, hosts=(host,))
            | _mount(job)
        ],
    } | _volume(job)


def _literal(arguments: Sequence[str]) -> list[str]:
    """What reaches the container unchanged: Kubernetes takes `$$` for `$`, and `$(NAME)` for a variable of its own."""
    return [argument.replace("$", "$$") for argument in arguments]


def _away_from(avoided: Sequence[str]) -> dict[str, Any]:
    if not avoided:
        return {}
    where = {"key": _HOSTNAME, "operator": "NotIn", "values": list(avoided)}
    return {"affinity": {"nodeAffinity": _required(where)}}


def _required(*where: dict[str, Any]) -> dict[str, Any]:
    terms = [{"matchExpressions": list(where)}]
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}


def _train_job(job: LaunchJob, needs: PodNeeds) -> dict[str, Any]:
    """One pod per host, spread by rules; which pod is on which host is found out by each process for itself."""
    hosts = [job.real_host(host) for host in job.placement.hosts]
    counts = {len(job.placement.on(host)) for host in job.placement.hosts}
    if len(counts) > 1:
        raise ValueError(
            f"a TrainJob has equally many processes on every host, but the plan {min(counts)} to {max(counts)}; use "
            "--controller jobset"
        )
    where = {"key": _HOSTNAME, "operator": "In", "values": hosts}
    other_hosts = {
        "labelSelector": {"matchLabels": {"jobset.sigs.k8s.io/jobset-name": job.name}},
        "topologyKey": _HOSTNAME,
    }
    affinity = {
        "nodeAffinity": _required(where),
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [other_hosts]},
    }
    template = {"affinity": affinity, "containers": [{"name": "node"} | _mount(job)]} | _volume(job)
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": _metadata(job, needs),
        "spec": {
            "runtimeRef": {"name": needs.runtime},
            "trainer": {
                "image": needs.image,
                "numNodes": len(hosts),
                "numProcPerNode": counts.pop(),
                "command": _literal(["torchrun", *rank_arguments(job)]),
                "env": [
                    {"name": HOST_VARIABLES[0], "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                ],
            }
            | {
                f"{key}PerNode": value
                for key, value in _resources(job, needs, hosts=job.placement.hosts).items()
            },
            "runtimePatches": [
                {
                    "manager": "pipeplan.dev/launch",
                    "trainingRuntimeSpec": {
                        "template": {
                            "spec": {
                                "replicatedJobs": [
                                    {"name": "node", "template": {"spec": {"template": {"spec": template}}}}
                                ]
                            }
                        }
                    },
                }
            ],
        },
    }  # fmt: skip


def _resources(job: LaunchJob, needs: PodNeeds, *, hosts: Sequence[str]) -> dict[str, Any]:
    """What pods that are alike ask for: the most that one of these hosts needs."""
    if not needs.with_gpus:
        return {}
    require_accelerators(job, option="--gpus")
    limits: Counter[str] = Counter()
    for host in hosts:
        count = max(slot.index for slot in job.placement.on(host)) + 1
        kinds = (*job.cluster.types.get(host, ()), *[""] * count)[:count]
        limits |= Counter(resource_of(kind, host=host) for kind in kinds)
    return {"resources": {"limits": {name: str(count) for name, count in limits.items()}}}


def _is_mounted(job: LaunchJob) -> bool:
    return job.plan_at.startswith(_PLAN_FOLDER)


def _mount(job: LaunchJob) -> dict[str, Any]:
    mount = {"name": "plan", "mountPath": _PLAN_FOLDER, "readOnly": True}
    return {"volumeMounts": [mount]} if _is_mounted(job) else {}


def _volume(job: LaunchJob) -> dict[str, Any]:
    return {"volumes": [{"name": "plan", "configMap": {"name": f"{job.name}-plan"}}]} if _is_mounted(job) else {}
