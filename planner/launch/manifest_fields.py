"""The fields that a manifest may have, so that a misspelt one is found before a job is submitted without it.

Kubernetes 1.37's pods, JobSet 0.10, Kubeflow Trainer 2.3, Volcano 1.13. `any` is left to the server.
"""

import difflib
from collections.abc import Mapping
from typing import Any

_TABLE = {
    "JobSet": "apiVersion:string kind:string metadata:ObjectMeta spec:JobSetSpec",
    "JobSetSpec": (
        "coordinator:any failurePolicy:any managedBy:string network:any replicatedJobs:[ReplicatedJob] "
        "startupPolicy:any successPolicy:any suspend:boolean ttlSecondsAfterFinished:integer volumeClaimPolicies:any"
    ),
    "ReplicatedJob": "dependsOn:any groupName:string name:string replicas:integer template:JobTemplate",
    "JobTemplate": "metadata:ObjectMeta spec:JobSpec",
    "JobSpec": (
        "activeDeadlineSeconds:integer backoffLimit:integer backoffLimitPerIndex:integer completionMode:string "
        "completions:integer managedBy:string manualSelector:boolean maxFailedIndexes:integer parallelism:integer "
        "podFailurePolicy:any podReplacementPolicy:string scheduling:any selector:any successPolicy:any "
        "suspend:boolean template:PodTemplate ttlSecondsAfterFinished:integer"
    ),
    "Job": "apiVersion:string kind:string metadata:ObjectMeta spec:VolcanoJobSpec",
    "VolcanoJobSpec": (
        "maxRetry:integer minAvailable:integer minSuccess:integer networkTopology:any plugins:any policies:any "
        "priorityClassName:string queue:string runningEstimate:string schedulerName:string tasks:[VolcanoTask] "
        "ttlSecondsAfterFinished:integer volumes:any"
    ),
    "VolcanoTask": (
        "dependsOn:any maxRetry:integer minAvailable:integer name:string partitionPolicy:any policies:any "
        "replicas:integer template:PodTemplate topologyPolicy:string"
    ),
    "TrainJob": "apiVersion:string kind:string metadata:ObjectMeta spec:TrainJobSpec",
    "TrainJobSpec": (
        "activeDeadlineSeconds:integer initializer:any managedBy:string runtimePatches:any runtimeRef:any "
        "suspend:boolean trainer:TrainJobTrainer"
    ),
    "TrainJobTrainer": (
        "args:[string] command:[string] env:[EnvVar] image:string numNodes:integer numProcPerNode:any "
        "resourcesPerNode:ResourceRequirements"
    ),
    "TrainJobPod": "apiVersion:string kind:string metadata:ObjectMeta spec:TrainJobPodSpec",
    "TrainJobPodSpec": (
        "affinity:any containers:[TrainJobContainer] imagePullSecrets:[LocalObjectReference] "
        "initContainers:[TrainJobContainer] nodeSelector:{string} schedulingGates:any "
        "securityContext:PodSecurityContext serviceAccountName:string terminationGracePeriodSeconds:integer "
        "tolerations:[Toleration] volumes:[Volume]"
    ),
    "TrainJobContainer": "env:[EnvVar] name:string securityContext:SecurityContext volumeMounts:[VolumeMount]",
    "ConfigMap": (
        "apiVersion:string binaryData:{string} data:{string} immutable:boolean kind:string metadata:ObjectMeta"
    ),
    "ObjectMeta": (
        "annotations:{string} finalizers:[string] generateName:string labels:{string} name:string namespace:string "
        "ownerReferences:any"
    ),
    "PodTemplate": "metadata:ObjectMeta spec:PodSpec",
    "Pod": "apiVersion:string kind:string metadata:ObjectMeta spec:PodSpec",
    "PodSpec": (
        "activeDeadlineSeconds:integer affinity:any automountServiceAccountToken:boolean containers:[Container] "
        "dnsConfig:any dnsPolicy:string enableServiceLinks:boolean ephemeralContainers:any evictionResponders:any "
        "hostAliases:[HostAlias] hostIPC:boolean hostNetwork:boolean hostPID:boolean hostUsers:boolean "
        "hostname:string hostnameOverride:string imagePullSecrets:[LocalObjectReference] initContainers:[Container] "
        "nodeName:string nodeSelector:{string} os:any overhead:{quantity} preemptionPolicy:string priority:integer "
        "priorityClassName:string readinessGates:any resourceClaims:any resources:ResourceRequirements "
        "restartPolicy:string runtimeClassName:string schedulerName:string schedulingGates:any schedulingGroup:any "
        "securityContext:PodSecurityContext serviceAccount:string serviceAccountName:string setHostnameAsFQDN:boolean "
        "shareProcessNamespace:boolean subdomain:string terminationGracePeriodSeconds:integer "
        "tolerations:[Toleration] topologySpreadConstraints:any volumes:[Volume]"
    ),
    "Container": (
        "args:[string] command:[string] env:[EnvVar] envFrom:any image:string imagePullPolicy:string lifecycle:any "
        "livenessProbe:any name:string ports:[ContainerPort] readinessProbe:any resizePolicy:any "
        "resources:ResourceRequirements restartPolicy:string restartPolicyRules:any securityContext:SecurityContext "
        "startupProbe:any stdin:boolean stdinOnce:boolean terminationMessagePath:string "
        "terminationMessagePolicy:string tty:boolean volumeDevices:any volumeMounts:[VolumeMount] workingDir:string"
    ),
    "ContainerPort": "containerPort:integer hostIP:string hostPort:integer name:string protocol:string",
    "EnvVar": "name:string value:string valueFrom:any",
    "VolumeMount": (
        "bindMountOptions:[string] mountPath:string mountPropagation:string name:string readOnly:boolean "
        "recursiveReadOnly:string subPath:string subPathExpr:string"
    ),
    "Volume": (
        "awsElasticBlockStore:any azureDisk:any azureFile:any cephfs:any cinder:any configMap:any csi:any "
        "downwardAPI:any emptyDir:EmptyDirVolumeSource ephemeral:any fc:any flexVolume:any flocker:any "
        "gcePersistentDisk:any gitRepo:any glusterfs:any hostPath:HostPathVolumeSource image:any iscsi:any "
        "name:string nfs:NFSVolumeSource persistentVolumeClaim:PersistentVolumeClaimVolumeSource "
        "photonPersistentDisk:any portworxVolume:any projected:any quobyte:any rbd:any scaleIO:any secret:any "
        "storageos:any vsphereVolume:any"
    ),
    "EmptyDirVolumeSource": "medium:string mode:integer sizeLimit:quantity",
    "HostPathVolumeSource": "path:string type:string",
    "NFSVolumeSource": "path:string readOnly:boolean server:string",
    "PersistentVolumeClaimVolumeSource": "claimName:string readOnly:boolean",
    "ResourceRequirements": "claims:any limits:{quantity} requests:{quantity}",
    "Toleration": "effect:string key:string operator:string tolerationSeconds:integer value:string",
    "HostAlias": "hostnames:[string] ip:string",
    "LocalObjectReference": "name:string",
    "SecurityContext": (
        "allowPrivilegeEscalation:boolean appArmorProfile:any capabilities:Capabilities privileged:boolean "
        "procMount:string readOnlyRootFilesystem:boolean runAsGroup:integer runAsNonRoot:boolean runAsUser:integer "
        "seLinuxOptions:any seccompProfile:any windowsOptions:any"
    ),
    "Capabilities": "add:[string] drop:[string]",
    "PodSecurityContext": (
        "appArmorProfile:any fsGroup:integer fsGroupChangePolicy:string runAsGroup:integer runAsNonRoot:boolean "
        "runAsUser:integer seLinuxChangePolicy:string seLinuxOptions:any seccompProfile:any "
        "supplementalGroups:[integer] supplementalGroupsPolicy:string sysctls:any windowsOptions:any"
    ),
}
FIELDS: Mapping[str, Mapping[str, str]] = {
    kind: dict(word.split(":") for word in words.split()) for kind, words in _TABLE.items()
}
"""Type of every field of every kind: a scalar, a kind, `[...]` a list, `{...}` a mapping, `any` anything."""
DIRECTIVE = "$patch"
"""`replace`, `delete` or `merge`: what Kubernetes reads in a patch instead of a field."""
_SCALARS: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "boolean": (bool,),
    "quantity": (str, int, float),
}

_TASK = (
    "api_server_access config envs event_callback file_mounts inputs managed_secrets name num_nodes outputs pool "
    "resources run secrets service setup volume_mounts volumes workdir"
)
_RUNTIME = (
    "conda config container env_vars excludes image_uri java_jars pip py_executable py_modules uv "
    "worker_process_setup_hook"
)


def require_task_fields(value: Any, *, where: str) -> None:
    """Raise ValueError for the first field that a task of SkyPilot 0.14 does not have."""
    _require_names(
        _mapping(value, where=where), dict.fromkeys(_TASK.split(), "any"), subject="a SkyPilot task", where=where
    )


def require_runtime_fields(value: Any, *, where: str) -> None:
    """Raise ValueError for the first field that Ray 2.60's runtime environment does not have."""
    _require_names(
        _mapping(value, where=where),
        dict.fromkeys(_RUNTIME.split(), "any"),
        subject="a runtime environment",
        where=where,
    )
    if "env_vars" in value:
        require_known_fields(value["env_vars"], "{string}", where=f"{where}.env_vars")


def require_known_fields(value: Any, kind: str, *, where: str) -> None:
    """Raise ValueError for the first field of a patch that `kind` does not have, or whose value is of another type.

    None is right everywhere: it removes what is there.
    """
    if value is None or kind == "any":
        return
    if kind in FIELDS:
        _require_object(value, kind, where=where)
    elif kind.startswith("["):
        _require_list(value, kind[1:-1], where=where)
    elif kind.startswith("{"):
        for name, item in _mapping(value, where=where).items():
            require_known_fields(item, kind[1:-1], where=f"{where}.{name}")
    elif not isinstance(value, _SCALARS[kind]) or (isinstance(value, bool) and kind != "boolean"):
        remedy = f"; write {where.rpartition('.')[2]}: {_quoted(value)}" if kind == "string" else ""
        article = "an" if kind == "integer" else "a"
        raise ValueError(f"{where}: {_shown(value)} is no {kind}{remedy or f'; give {article} {kind}'}")


def _require_object(value: Any, kind: str, *, where: str) -> None:
    _require_names(_mapping(value, where=where), FIELDS[kind], subject=_subject(kind), where=where)
    for name, item in value.items():
        require_known_fields(item, FIELDS[kind].get(name, "any"), where=f"{where}.{name}")


def _require_names(value: Mapping[Any, Any], known: Mapping[str, str], *, subject: str, where: str) -> None:
    for name, item in value.items():
        if name == DIRECTIVE:
            _require_directive(item, where=where)
        elif str(name).startswith("$"):
            raise ValueError(f"{where}: {name} is not supported; write the fields, null for those that are to go")
        elif name not in known:
            near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
            remedy = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known))}"
            raise ValueError(f"{where}: {subject} has no field {name!r} (its value is {_shown(item)}); {remedy}")


def _require_directive(value: Any, *, where: str) -> None:
    if value not in ("replace", "delete", "merge"):
        raise ValueError(f"{where}.{DIRECTIVE}: {_shown(value)}; write replace, delete or merge")


def _require_list(value: Any, kind: str, *, where: str) -> None:
    if not isinstance(value, list):
        raise ValueError(f"{where}: {_shown(value)} is no list; begin each item with a hyphen")
    for number, item in enumerate(value):
        name = item.get("name", number) if isinstance(item, dict) else number
        require_known_fields(item, kind, where=f"{where}[{name}]")


def _mapping(value: Any, *, where: str) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: {_shown(value)} is no mapping; write its fields as NAME: VALUE")
    return value


def _subject(kind: str) -> str:
    return {"PodSpec": "a pod", "TrainJobPodSpec": "a pod of a TrainJob", "ObjectMeta": "metadata"}.get(
        kind, f"a {kind}"
    )


def _quoted(value: Any) -> str:
    return f'"{str(value).lower() if isinstance(value, bool) else value}"'


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
