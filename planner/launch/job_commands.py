"""What was submitted, and the commands that ask about it, show what it says, and end it."""

from dataclasses import dataclass
from typing import Literal

_STRICT = {"extra": "forbid"}

Launcher = Literal["torchrun", "slurm", "kubernetes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """What is remembered of a submission; stands in the job's folder as `launch.json`."""

    __pydantic_config__ = _STRICT

    launcher: Launcher
    """Who has it."""
    name: str
    """Its name there."""
    number: str = ""
    """Slurm's number."""
    namespace: str = ""
    """Kubernetes only."""
    kind: str = ""
    """Kubernetes only: which controller."""
    processes: tuple[tuple[int, int], ...] = ()
    """torchrun only: process id of every agent started here, and when it started (clock ticks since boot)."""


_SELECTORS = {
    "jobset": "jobset.sigs.k8s.io/jobset-name",
    "trainjob": "jobset.sigs.k8s.io/jobset-name",
    "volcano": "volcano.sh/job-name",
}


def status_command(submitted: Submitted, *, folder: str) -> tuple[str, ...]:
    """Asks the launcher how the job is; not for torchrun, whose agents are processes of this machine."""
    if submitted.launcher == "slurm":
        return ("squeue", "--noheader", "--states=all", f"--jobs={submitted.number}", "--format=%T %R")
    return ("kubectl", "get", "--filename", f"{folder}/job.json")


def logs_command(submitted: Submitted, *, folder: str, follow: bool) -> tuple[str, ...]:
    """Shows what the job's processes say."""
    if submitted.launcher != "kubernetes":
        return ("tail", "--lines=+1", *(["--follow=name", "--retry"] if follow else []), "--", f"{folder}/log")
    selector = f"--selector={_SELECTORS[submitted.kind]}={submitted.name}"
    return (
        *("kubectl", "logs", f"--namespace={submitted.namespace}", selector),
        *("--all-containers", "--prefix", "--tail=-1", *(["--follow"] if follow else [])),
    )


def cancel_command(submitted: Submitted, *, folder: str) -> tuple[str, ...]:
    """Ends the job; not for torchrun, see `status_command`."""
    if submitted.launcher == "slurm":
        return ("scancel", submitted.number)
    return ("kubectl", "delete", "--filename", f"{folder}/job.json")
