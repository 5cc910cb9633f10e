"""What is launched, and what a launcher makes of it: files to write and commands to run, all of it printable first."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from planner.launch.cluster_facts import ClusterFacts
from planner.launch.rank_mapping import RankMapping

TORCHRUN = ("-m", "planner.execute.run.agent")
"""How torchrun is started with a given interpreter, without a traceback of its own."""
_MAX_MADE_NAME = 44
"""Characters of a name that is made here: a JobSet of ten thousand hosts takes no longer one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchJob:
    """A plan and a program that is to run under it."""

    name: str
    """Shown by the launcher; letters, digits and hyphens."""
    placement: RankMapping
    """Which process drives which device of the plan."""
    program: tuple[str, ...]
    """`train.py ARGUMENTS` or `-m MODULE ARGUMENTS`."""
    plan_at: str
    """Path or address of the plan, as every process sees it."""
    plan_sha256: str
    """Content hash that every process checks."""
    cluster_at: str | None = None
    """Path of the cluster document, for a plan that brings none along."""
    cluster: ClusterFacts = field(default_factory=ClusterFacts)
    """What is known of the hosts."""
    host_names: Mapping[str, str] = field(default_factory=dict)
    """Real names of hosts that are called otherwise in the plan."""
    python: str = "python3"
    """Interpreter on the hosts."""
    on_processors: bool = False
    """Run on processors, whatever accelerators there are."""
    record_at: str | None = None
    """Folder in which every process's end is written down, as all hosts see it."""
    checkpoints_at: str | None = None
    """Folder of the job's checkpoints, as all hosts see it."""
    copies_at: str | None = None
    """Folder in every host's memory for copies of the job's state."""
    recipe_at: str | None = None
    """The recipe by which the program continues."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,50}[a-z0-9])?", self.name):
            raise ValueError(f"job name {self.name!r}: give at most 52 lower-case letters, digits and inner hyphens")
        if not self.program or self.program == ("-m",):
            raise ValueError("what to run is missing; add -- and the program, e.g. -- train.py --steps 100")
        if re.fullmatch(r"(?!-m$|.*\.py$)[\w.-]+|.*\.sh", self.program[0]):
            raise ValueError(
                f"the program {self.program[0]!r} is no Python file; write -- FILE.py or -- -m MODULE and its "
                "arguments, no interpreter or launcher before it, and a file with another ending by its path"
            )
        names = [self.real_host(host) for host in self.placement.hosts]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"two hosts of the plan are {twice!r}; name two machines with --host, or plan for one")

    def real_host(self, host: str) -> str:
        """The name of a host of the plan as the network knows it."""
        return self.host_names.get(host, host)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command, the host it runs on, and what is added to its environment."""

    arguments: tuple[str, ...]
    """The words of the command."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that are set for it."""
    host: str | None = None
    """The host it is started on; None: this one."""

    def render(self) -> str:
        """The line that a shell on its host takes."""
        setting = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*setting, shlex.join(self.arguments)])


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSubmission:
    """Everything that a launch does: write these files into the job's folder, then run these commands."""

    files: Mapping[str, str] = field(default_factory=dict)
    """Text by name; the plan itself stands beside them as `plan.json`."""
    commands: tuple[Command, ...]
    """In this order; with several hosts all at once."""

    def render(self, *, folder: str) -> str:
        """What `--dry-run` prints."""
        parts = []
        for name, text in self.files.items():
            parts.append(f"# {folder}/{name}\n{text}" + ("" if text.endswith("\n") else "\n"))
        for command in self.commands:
            where = "" if command.host is None else f"# on {command.host}\n"
            parts.append(f"{where}$ {command.render()}\n")
        return "\n".join(parts)


def make_job_name(text: str, *, suffix: str = "") -> str:
    """A job name out of any text that every launcher takes: it begins with a letter, and ends with `suffix` whole."""
    end = re.sub(r"[^a-z0-9]+", "-", suffix.lower()).strip("-")
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    name = name if name[:1].isalpha() else f"plan-{name}"
    room = _MAX_MADE_NAME - (len(end) + 1 if end else 0)
    return "-".join(part for part in (name[:room].strip("-"), end) if part)


def rank_arguments(job: LaunchJob, *, is_here: bool = False) -> tuple[str, ...]:
    """The module and its arguments with which every process begins."""
    arguments = ["-m", "planner.execute.enter", job.plan_at, "--sha256", job.plan_sha256]
    if job.cluster_at is not None:
        arguments += ["--cluster", job.cluster_at]
    if is_here:
        arguments.append("--here")
    else:
        arguments += [
            argument for planned, real in job.host_names.items() for argument in ("--host", f"{planned}={real}")
        ]
    if job.on_processors:
        arguments.append("--processors")
    kept = {"--record": job.record_at, "--checkpoints": job.checkpoints_at}
    kept |= {"--copies": job.copies_at, "--recipe": job.recipe_at}
    arguments += [argument for option, place in kept.items() if place is not None for argument in (option, place)]
    return (*arguments, "--", *job.program)


def require_host_names(hosts: Sequence[str], *, what: str) -> None:
    """Raise ValueError for a host that cannot be the name of a machine: it would be taken for something else."""
    for host in hosts:
        if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", host):
            raise ValueError(f"host {host!r} cannot be {what}; name it with --host {shlex.quote(host)}=NAME")
