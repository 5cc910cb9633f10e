"""What was submitted, and the commands that ask about it, show what it says, and end it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from profiles.documents.strict_record import StrictRecord

_Launcher = Literal["torchrun", "slurm", "kubernetes", "skypilot", "ray"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted(StrictRecord):
    """What is remembered of a submission; stands in the job's folder as `launch.json`."""

    launcher: _Launcher
    """Launcher that the job was given to."""
    name: str
    number: str = ""
    """Slurm's number, Ray's submission id."""
    address: str = ""
    """Ray only: of its dashboard, if one was given."""
    namespace: str = ""
    """Kubernetes only."""
    kind: str = ""
    """Kubernetes only: which controller."""
    processes: tuple[tuple[int, int], ...] = ()
    """torchrun only: process id of every agent started here, and when it started (clock ticks since boot)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest(StrictRecord):
    """What a job was launched with, as far as its plan does not say; stands in the job's folder as `request.json`."""

    launcher: _Launcher
    """Launcher that runs it."""
    program: tuple[str, ...]
    """Program and arguments of every process."""
    python: str
    """Interpreter on the hosts."""
    on_processors: bool = False
    """Run on processors, whatever accelerators there are."""
    host_names: dict[str, str] = field(default_factory=dict)
    """Real names of hosts that are called otherwise in the plan."""
    plan: str = "plan.json"
    """Its plan, in the folder."""
    heals: int = 0
    """How often it was planned anew."""
    is_here: bool = False
    """torchrun only: all processes on one machine."""
    master: str = ""
    """Address of the first host, if its name is none."""
    port: int = 29500
    """torchrun only: where several hosts meet."""
    with_gpus: bool = False
    """Slurm and Kubernetes: ask for accelerators."""
    options: tuple[str, ...] = ()
    """Slurm only: further options of sbatch."""
    controller: str = ""
    """Kubernetes only."""
    image: str = ""
    """Kubernetes only."""
    namespace: str = ""
    """Kubernetes only."""
    max_restarts: int = 0
    """Kubernetes only."""
    patches: tuple[str, ...] = ()
    """Kubernetes only: files, read again when the job is launched again."""


_SELECTORS = {
    "jobset": "jobset.sigs.k8s.io/jobset-name",
    "trainjob": "jobset.sigs.k8s.io/jobset-name",
    "volcano": "volcano.sh/job-name",
}


def status_command(submitted: Submitted, *, folder: str) -> tuple[str, ...]:
    """Asks the launcher how the job is; empty for torchrun, whose agents are processes of this machine."""
    match submitted.launcher:
        case "slurm":
            number, _, cluster = submitted.number.partition(";")
            return on_cluster(cluster, "squeue", "--noheader", "--states=all", f"--jobs={number}", "--format=%T %R")
        case "skypilot":
            return ("sky", "jobs", "queue", "--all", "--output=json")
        case "ray":
            return _ray(submitted, "status")
        case "torchrun":
            return ()
        case "kubernetes":
            return ("kubectl", "get", "--ignore-not-found", "--filename", f"{folder}/job.json")


def on_cluster(cluster: str, program: str, *arguments: str) -> tuple[str, ...]:
    """A program of Slurm's that is asked about another cluster than that of this machine; empty: about this one."""
    return (program, *([f"--clusters={cluster}"] if cluster else []), *arguments)


def node_states_command() -> tuple[str, ...]:
    """Kubernetes only: says how the nodes are."""
    return ("kubectl", "get", "nodes", "--output=json")


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


def logs_command(submitted: Submitted, *, folder: str, follow: bool) -> tuple[str, ...]:
    """Shows what the job's processes say."""
    following = ["--follow"] if follow else []
    match submitted.launcher:
        case "skypilot":
            return ("sky", "jobs", "logs", f"--name={submitted.name}", "--follow" if follow else "--no-follow")
        case "ray":
            return _ray(submitted, "logs", *following)
        case "torchrun" | "slurm":
            return ("tail", "--lines=+1", *(["--follow=name", "--retry"] if follow else []), "--", f"{folder}/log")
        case "kubernetes":
            selector = f"--selector={_SELECTORS[submitted.kind]}={submitted.name}"
            told = ("kubectl", "logs", f"--namespace={submitted.namespace}", selector)
            return (*told, "--all-containers", "--prefix", "--tail=-1", *following)


def cancel_command(submitted: Submitted, *, folder: str) -> tuple[str, ...]:
    """Ends the job; empty for torchrun, see `status_command`."""
    match submitted.launcher:
        case "slurm":
            number, _, cluster = submitted.number.partition(";")
            return on_cluster(cluster, "scancel", number)
        case "skypilot":
            return ("sky", "jobs", "cancel", "--yes", f"--name={submitted.name}")
        case "ray":
            return _ray(submitted, "stop")
        case "torchrun":
            return ()
        case "kubernetes":
            return ("kubectl", "delete", "--ignore-not-found", "--filename", f"{folder}/job.json")


def _ray(submitted: Submitted, verb: str, *options: str) -> tuple[str, ...]:
    address = [f"--address={submitted.address}"] if submitted.address else []
    return ("ray", "job", verb, *address, *options, submitted.number)
