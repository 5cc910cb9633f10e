"""What Kubernetes says of a job's pods and of the nodes they stand on, and what it means for the job."""

import json
import signal
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from planner.execute.record.rank_record import RankRecord
from planner.execute.record.resumption_record import Resumption

_KILLED = 137
"""Exit code of a container that SIGKILL ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodState:
    """One pod of a job."""

    uid: str
    """Kubernetes' own name of it, which no other pod ever has."""
    host: str
    """The node that it was put on; empty before."""
    phase: Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"]
    """Kubernetes' phase of the pod."""
    is_disrupted: bool
    """Whether Kubernetes took it away, and not its program: its node is drained, shut down, or another pod's now."""
    code: int | None
    """Exit code of its container, once that has ended."""
    reports: tuple[RankRecord, ...] = ()
    """The last that its processes' parents have said, once it has ended; of a parent that is gone: that they run."""
    resumption: Resumption | None = None
    """How the job continued, where a process of it knows."""

    @property
    def was_killed(self) -> bool:
        """Whether all of it was killed, and nobody was left to report."""
        return self.code == _KILLED and not any(report.state == "ended" for report in self.reports)

    @property
    def has_lost(self) -> bool:
        """Whether a process of it was killed, or vanished with its parent."""
        killed = (each.code == -signal.SIGKILL and not each.was_asked for each in self.reports)
        return any(killed) or any(each.state != "ended" for each in self.reports)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodsSeen:
    """A look at the pods of a job and at the nodes of its plan."""

    pods: tuple[PodState, ...] = ()
    """Those of this job, none of an earlier one."""
    down: Mapping[str, str] = field(default_factory=dict)
    """Nodes that cannot be used, and why."""

    def ended(self, *, hosts: Collection[str]) -> int | None:
        """0 once every host's pod has succeeded, 1 once the job cannot come to its end, else None."""
        done = {pod.host for pod in self.pods if pod.phase == "Succeeded"}
        if done >= set(hosts):
            return 0
        stopped = any(pod.phase == "Failed" or pod.is_disrupted for pod in self.pods)
        return 1 if stopped or self.lost_hosts(hosts) else None

    def is_explained(self, *, hosts: Collection[str]) -> bool:
        """Whether a loss is seen, or every host has said how it ended: nothing more is to be waited for."""
        ended = {pod.host for pod in self.pods if pod.phase in ("Succeeded", "Failed")}
        return any(pod.has_lost for pod in self.pods) or bool(self.lost_hosts(hosts)) or ended >= set(hosts)

    def lost_hosts(self, hosts: Collection[str]) -> dict[str, str]:
        """Hosts that the job has lost as a whole, and why; a host whose pod has succeeded has done its part."""
        done = {pod.host for pod in self.pods if pod.phase == "Succeeded"}
        taken = {pod.host: "Kubernetes took its pod away" for pod in self.pods if pod.is_disrupted}
        taken |= {pod.host: "its pod was killed as a whole" for pod in self.pods if pod.was_killed}
        found = taken | dict(self.down)
        return {host: why for host, why in found.items() if host in hosts and host not in done}


def read_pods(text: str, *, without: Collection[str] = ()) -> tuple[PodState, ...]:
    """What `kubectl get pods --output=json` says; `without`: the uids of pods of an earlier attempt."""
    found = (_read_pod(item) for item in json.loads(text)["items"])
    return tuple(pod for pod in found if pod.uid not in without)


def _read_pod(item: Mapping[str, Any]) -> PodState:
    status = item.get("status", {})
    conditions = status.get("conditions", ())
    ended = [each.get("state", {}).get("terminated") for each in status.get("containerStatuses", ())]
    ends = [each for each in ended if each is not None]
    lines = [line for each in ends for line in each.get("message", "").splitlines()]
    reports, resumption = read_reports(lines)
    return PodState(
        uid=item["metadata"]["uid"],
        host=item.get("spec", {}).get("nodeName", ""),
        phase=status.get("phase", "Pending"),
        is_disrupted=any(each["type"] == "DisruptionTarget" and each["status"] == "True" for each in conditions),
        code=next((each["exitCode"] for each in ends if each["exitCode"]), 0 if ends else None),
        reports=reports,
        resumption=resumption,
    )


def read_reports(lines: Iterable[str]) -> tuple[tuple[RankRecord, ...], Resumption | None]:
    """The last that every process left in its pod's termination message; what others wrote there is passed over."""
    records, resumption = dict[int, RankRecord](), None
    for line in lines:
        try:
            value = json.loads(line)
            if "rank" in value:
                records[value["rank"]] = RankRecord(**value)
            else:
                resumption = Resumption(**value)
        except (ValueError, TypeError):
            continue
    return tuple(records.values()), resumption


def read_down_nodes(text: str, *, hosts: Sequence[str]) -> dict[str, str]:
    """Of these nodes those that cannot be used, and why, by `kubectl get nodes --output=json`.

    A node that is only closed to new pods (`kubectl cordon`) still runs those that it has.
    """
    known = {item["metadata"]["name"]: item for item in json.loads(text)["items"]}
    down = {}
    for host in hosts:
        if host not in known:
            down[host] = "it is no node any more"
            continue
        conditions = known[host].get("status", {}).get("conditions", ())
        ready = next((each["status"] for each in conditions if each["type"] == "Ready"), "Unknown")
        if ready != "True":
            down[host] = f"its node is not ready ({ready})"
    return down
