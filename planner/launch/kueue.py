"""A JobSet whose nodes Kueue chooses: as many pods in each NVLink domain as the plan has hosts there.

Kueue's topology-aware scheduling places sets of like pods. A set that lies in one domain requires it; one that lies in
several, equally many pods in each, is cut into slices. Pods lie in order of their completion indices.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.execute.table.placement import HOST_VARIABLES
from planner.launch.launch_job import LaunchJob

NVLINK_LABEL = "nvidia.com/gpu.clique"
"""The label by which NVIDIA's device plugin tells the NVLink domain of a node."""
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""The label by which Kueue takes a job, and holds it until it is admitted."""
_ANNOTATION = "kueue.x-k8s.io/podset-"
MAX_POD_SETS = 18
"""Most sets that Kueue takes in one workload."""
_LABEL_NAME = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_QUEUE = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class KueueQueue:
    """Who admits the job, and the levels of its topology that matter."""

    name: str
    """The LocalQueue in the job's namespace."""
    levels: tuple[str, ...] = (NVLINK_LABEL,)
    """Labels of nodes, from the outermost level to that of NVLink domains."""

    def __post_init__(self) -> None:
        if not _QUEUE.fullmatch(self.name):
            raise ValueError(
                f"queue {self.name!r} is no name of a LocalQueue; give --kueue as `kubectl get localqueue`"
            )
        for level in self.levels:
            if not _LABEL_NAME.fullmatch(level):
                raise ValueError(f"level {level!r} is no label of nodes; give --kueue-level as the Topology names it")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSet:
    """Like pods, which Kueue places together."""

    hosts: tuple[str, ...]
    """The plan's host of each completion index, domain after domain."""
    hosts_per_domain: int
    """How many consecutive ones lie in one NVLink domain; 0: none of them lies in any."""

    def annotations(self, queue: KueueQueue) -> Mapping[str, str]:
        """What says to Kueue where they may lie."""
        *outer, innermost = queue.levels
        together = {f"{_ANNOTATION}preferred-topology": outer[-1]} if outer else {}
        if not self.hosts_per_domain:
            return together or {f"{_ANNOTATION}unconstrained-topology": "true"}
        if self.hosts_per_domain == len(self.hosts):
            return {f"{_ANNOTATION}required-topology": innermost}
        return together | {
            f"{_ANNOTATION}slice-required-topology": innermost,
            f"{_ANNOTATION}slice-size": str(self.hosts_per_domain),
        }


def split_pod_sets(job: LaunchJob) -> tuple[PodSet, ...]:
    """The job's hosts as sets of like pods, that of rank 0 first.

    Raises ValueError if hosts of one domain have different numbers of processes, since a set's pods are alike, and for
    more sets than Kueue takes.
    """
    domain_of = {host: number for number, domain in enumerate(job.cluster.domains) for host in domain}
    members: dict[object, list[str]] = {}
    for host in job.placement.hosts:
        members.setdefault(domain_of.get(host, host), []).append(host)
    alike: dict[tuple[int, tuple[int, int]], list[str]] = {}
    for domain, hosts in members.items():
        alike.setdefault((0 if domain == hosts[0] else len(hosts), _processes(job, hosts)), []).extend(hosts)
    if len(alike) > MAX_POD_SETS:
        raise ValueError(
            f"the plan needs {len(alike)} sets of like pods, but Kueue takes {MAX_POD_SETS}; leave out --kueue, and "
            "pods are pinned to the plan's nodes"
        )
    return tuple(PodSet(hosts=tuple(hosts), hosts_per_domain=size) for (size, _), hosts in alike.items())


def _processes(job: LaunchJob, hosts: Sequence[str]) -> tuple[int, int]:
    """Number of processes on each of these hosts, and of accelerators up to the highest that is used."""
    found = {host: job.placement.on(host) for host in hosts}
    shapes = {host: (len(slots), max(slot.index for slot in slots) + 1) for host, slots in found.items()}
    first = hosts[0]
    for host, shape in shapes.items():
        if shape != shapes[first]:
            raise ValueError(
                f"hosts {first!r} and {host!r} of one NVLink domain need {shapes[first][1]} and {shape[1]} "
                f"accelerators for {shapes[first][0]} and {shape[0]} processes, but Kueue places like pods; leave out "
                "--kueue, and pods are pinned to the plan's nodes"
            )
    return shapes[first]


def indexed_command(hosts: Sequence[str], *, start: Sequence[str], first_node: int, then: Sequence[str]) -> list[str]:
    """A container's command: torchrun's agent, as the host at the pod's completion index.

    `start`: up to the agent's options; `first_node`: nodes in sets before this one; `then`: the other arguments.
    """
    lines = (
        f"set -- {shlex.join(hosts)}",
        'shift "$JOB_COMPLETION_INDEX"',
        f'export {HOST_VARIABLES[0]}="$1"',
        f'exec {shlex.join(start)} --node-rank="$(({first_node} + JOB_COMPLETION_INDEX))" {shlex.join(then)}',
    )
    return ["/bin/sh", "-euc", "\n".join(lines)]
