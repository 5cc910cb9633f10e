"""What a pod asks for to get a device of some type: the resource of its maker's device plugin."""

import re

from profiles.discovery.kubernetes_devices import FAMILIES

_MAKERS = (
    (re.compile(r"\bamd|instinct|(?:\b|_)mi[0-9]{3}", re.IGNORECASE), "amd.com/gpu"),
    (re.compile(r"\bgaudi", re.IGNORECASE), "habana.ai/gaudi"),
    (re.compile(r"\btpu", re.IGNORECASE), "google.com/tpu"),
    (re.compile(r"neuron|trainium|inferentia", re.IGNORECASE), "aws.amazon.com/neuron"),
    (re.compile(r"MIG-|[0-9]g\.[0-9]+gb|[a-z]px_nps|ascend|\bintel|\bmlu|\bdcu", re.IGNORECASE), None),
)
"""Words in the names of types; None: several resources may offer such a device. All others are whole GPUs of NVIDIA."""


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
