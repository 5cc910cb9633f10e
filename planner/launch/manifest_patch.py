"""What a user wants otherwise in a manifest: volumes, tolerations, queues, /dev/shm, RDMA."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from planner.launch.manifest_fields import require_known_fields
from planner.launch.strategic_merge import merge

_CONTAINERS = ("rank", "node")
"""The container that runs the program: ours in a pod that is written whole, Kubeflow's in a TrainJob."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestPatch:
    """A partial object as it stands in a file."""

    source: str
    """The file, for messages."""
    document: Any
    """As parsed; `kind` says what it is merged over."""


def patch_manifest(items: Sequence[dict[str, Any]], patches: Sequence[ManifestPatch]) -> list[dict[str, Any]]:
    """The objects of a manifest under all patches, in their order.

    `kind: Pod` is merged over the pod of every host, or of the one that `metadata.name` names (`host0`, ...); any other
    kind over the object of that kind. Raises ValueError that names file, field, value and remedy.
    """
    patched = list(items)
    pods = _pods(items)
    for patch in patches:
        kind = _require_kind(patch, patched)
        if kind == "Pod":
            patched = [_patch_pods(item, patch) for item in patched]
        else:
            patched = [_patch_object(item, patch) if item["kind"] == kind else item for item in patched]
    left, is_job_set = _pods(patched), any(item["kind"] == "JobSet" for item in patched)
    for name in pods:
        _require_container(left.get(name, {}), name=name)
        _require_agreement(left[name].get("spec") or {}, name=name, is_job_set=is_job_set)
    return patched


def _pods(items: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Every pod template by the name of its host's part of the job."""
    found: dict[str, dict[str, Any]] = {}

    def note(pod: dict[str, Any], name: str) -> dict[str, Any]:
        found[name] = pod
        return pod

    for item in items:
        _map_pods(item, note)
    return found


def _require_kind(patch: ManifestPatch, items: Sequence[dict[str, Any]]) -> str:
    document = patch.document
    kinds: list[str] = ["Pod", *(item["kind"] for item in items)]
    if not isinstance(document, dict):
        raise ValueError(f"{patch.source}: {str(document)[:40]!r} is not an object; write kind: Pod and its fields")
    kind = str(document.get("kind"))
    if kind not in kinds:
        raise ValueError(
            f"{patch.source}: kind: {document.get('kind')!r} is not in this job; write one of {', '.join(kinds)}"
        )
    versions = {"Pod": "v1"} | {item["kind"]: item["apiVersion"] for item in items}
    if document.get("apiVersion", versions[kind]) != versions[kind]:
        raise ValueError(
            f"{patch.source}: apiVersion: {document['apiVersion']!r} is not a {kind}'s here; write {versions[kind]!r}"
        )
    is_train_job = kind == "Pod" and any(item["kind"] == "TrainJob" for item in items)
    require_known_fields(document, "TrainJobPod" if is_train_job else kind, where=patch.source)
    return kind


def _patch_object(item: dict[str, Any], patch: ManifestPatch) -> dict[str, Any]:
    merged: dict[str, Any] = merge(item, patch.document, where=patch.source)
    for name in ("name", "namespace"):
        value = merged.get("metadata", {}).get(name)
        if value != item["metadata"][name]:
            raise ValueError(
                f"{patch.source}: metadata.{name}: {value!r}; use --{name}, which `pipeplan job` remembers"
            )
    return merged


def _patch_pods(item: dict[str, Any], patch: ManifestPatch) -> dict[str, Any]:
    metadata = dict(patch.document.get("metadata") or {})
    wanted = metadata.pop("name", None)
    body = {name: value for name, value in patch.document.items() if name not in ("apiVersion", "kind", "metadata")}
    if metadata:
        body["metadata"] = metadata
    seen: list[str] = []

    def patched(pod: dict[str, Any], name: str) -> dict[str, Any]:
        seen.append(name)
        return pod if wanted not in (None, name) else merge(pod, body, where=f"{patch.source} ({name})")

    result = _map_pods(item, patched)
    if seen and wanted is not None and wanted not in seen:
        raise ValueError(
            f"{patch.source}: metadata.name: {wanted!r} is not a pod of this job; give one of {', '.join(seen)}"
        )
    return result


def _map_pods(item: dict[str, Any], change: Callable[[dict[str, Any], str], dict[str, Any]]) -> dict[str, Any]:
    """The object with `change(template, name)` in the place of every pod template, in whatever kind of job."""
    spec = item.get("spec", {})
    try:
        if item["kind"] == "JobSet":
            return item | {"spec": spec | {"replicatedJobs": [_in_job(job, change) for job in spec["replicatedJobs"]]}}
        if item["kind"] == "Job":
            tasks = [task | {"template": change(task["template"], task["name"])} for task in spec["tasks"]]
            return item | {"spec": spec | {"tasks": tasks}}
        if item["kind"] == "TrainJob":
            return item | {"spec": spec | {"runtimePatches": _in_runtime(spec["runtimePatches"], change)}}
    except (KeyError, TypeError) as error:
        raise ValueError(f"the patches leave a {item['kind']} without pods ({error}); keep its pods") from None
    return item


def _in_runtime(given: list[Any], change: Callable[[dict[str, Any], str], dict[str, Any]]) -> list[Any]:
    ours, *others = given
    template = ours["trainingRuntimeSpec"]["template"]
    jobs = [_in_job(job, change) for job in template["spec"]["replicatedJobs"]]
    return [ours | {"trainingRuntimeSpec": {"template": template | {"spec": {"replicatedJobs": jobs}}}}, *others]


def _in_job(job: dict[str, Any], change: Callable[[dict[str, Any], str], dict[str, Any]]) -> dict[str, Any]:
    spec = job["template"]["spec"]
    spec = spec | {"template": change(spec["template"], job["name"])}
    return job | {"template": job["template"] | {"spec": spec}}


def _require_container(pod: dict[str, Any], *, name: str) -> None:
    """Raise ValueError unless the pod has the container of the program, and every other container an image."""
    containers = (pod.get("spec") or {}).get("containers", [])
    ours = next((one["name"] for one in containers if one["name"] in _CONTAINERS), None)
    if ours is None:
        raise ValueError(f"{name}: the patches leave no container {_CONTAINERS[0]!r}, which runs the program; keep it")
    for container in containers:
        if container["name"] != _CONTAINERS[1] and not container.get("image"):
            raise ValueError(
                f"{name}: containers[{container['name']}] has no image; the program's container is {ours!r}; give any "
                "other an image"
            )


def _require_agreement(spec: dict[str, Any], *, name: str, is_job_set: bool) -> None:
    """Raise ValueError where Kubernetes would refuse what the patches make of a pod together."""
    if is_job_set and spec.get("restartPolicy") == "Always":
        raise ValueError(f"{name}: restartPolicy: 'Always' is not for the pods of a job; write OnFailure or Never")
    volumes = {volume.get("name") for volume in spec.get("volumes") or ()}
    for container in spec["containers"]:
        for mount in container.get("volumeMounts") or () if container["name"] != _CONTAINERS[1] else ():
            if mount.get("name") not in volumes:
                raise ValueError(
                    f"{name}: containers[{container['name']}].volumeMounts[{mount.get('mountPath')}].name: "
                    f"{mount.get('name')!r} is not a volume of the pod; add it to volumes"
                )
