"""What a pod asks for to get a device of some type: the resource of its maker's device plugin."""

import re

from planner.launch.launch_job import LaunchJob
from profiles.discovery.kubernetes_devices import FAMILIES

_MAKERS = (
    (re.compile(r"\bamd|instinct|(?:\b|_)mi[0-9]{3}", re.IGNORECASE), "amd.com/gpu"),
    (re.compile(r"\bgaudi", re.IGNORECASE), "habana.ai/gaudi"),
    (re.compile(r"\btpu", re.IGNORECASE), "google.com/tpu"),
    (re.compile(r"neuron|trainium|inferentia", re.IGNORECASE), "aws.amazon.com/neuron"),
    (re.compile(r"MIG-|[0-9]g\.[0-9]+gb|[a-z]px_nps|ascend|\bintel|\bmlu|\bdcu", re.IGNORECASE), None),
)
"""Words in the names of types; None: several resources may offer such a device. All others are whole GPUs of NVIDIA."""


_PROCESSOR = re.compile(r"(^|[^a-z])cpus?([^a-z]|$)", re.IGNORECASE)
"""Types of devices that are no accelerators, as discovery and profiling file them."""
_MODEL = re.compile(r"(?i)(?<![a-z0-9])(?:g?[abhv][0-9]{2,3}|[tlp](?:4|[0-9]{2,3})|mi[0-9]{3})[a-z]?(?![a-z0-9])")
"""Makers' names of chips, in names of types, e.g. H100 in `NVIDIA H100 80GB HBM3`."""


def require_accelerators(job: LaunchJob, *, option: str, named: str = "") -> None:
    """Raise ValueError where `option` asks for accelerators, those `named` if any, that the plan's devices are not."""
    if job.on_processors:
        raise ValueError(f"{option}: --processors runs on processors; leave one of them out")
    asked = {each.lower() for each in _MODEL.findall(named)}
    for slot in job.placement.slots:
        kind = "".join(job.cluster.types.get(slot.host, ())[slot.index : slot.index + 1])
        stated = f"{option}: device {slot.device!r} of the plan is of type {kind!r}"
        if _PROCESSOR.search(kind):
            raise ValueError(f"{stated}; drop {option.split()[0]}, or plan for a cluster of accelerators")
        planned = {each.lower() for each in _MODEL.findall(kind)}
        if asked and planned and not asked & planned:
            raise ValueError(f"{stated}; name that one, or plan for a cluster of {named}")


def resource_of(kind: str, *, host: str) -> str:
    """The resource of a type, which may be its name; raises ValueError where it may be several."""
    if any(family.resource.fullmatch(kind) for family in FAMILIES):
        return kind
    resource = next((name for pattern, name in _MAKERS[::-1] if pattern.search(kind)), "nvidia.com/gpu")
    if resource is None:
        raise ValueError(
            f"host {host!r}: several resources may offer its {kind!r}; leave --gpus out, and name the right one in a "
            "--patch: {kind: Pod, spec: {containers: [{name: rank, resources: {limits: {RESOURCE: N}}}]}}"
        )
    return resource
