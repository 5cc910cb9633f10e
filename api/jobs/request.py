"""A request becomes a problem with limits, a canonical text, and the two keys under which its answer is found again."""

import hashlib
import json
import platform
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import version
from typing import Any

from planner.problem import Options, Problem
from planner.progress import Limits
from profiles.canonical_json import canonical_json, to_plain
from profiles.cluster import Cluster
from profiles.field_rules import require_integer
from profiles.load import workload_of
from profiles.model_profile import ModelProfile
from profiles.refusal import refusal
from profiles.strict_json import Ceiling, decode_text, parse_json
from profiles.validation import validate
from profiles.workload import WORKLOAD_FORMAT, Workload, profile_to_plain

MAX_PRIORITY = 10
SOURCE = "body"
"""What messages call the request."""

BODIES = Ceiling(values=500_000, containers=100_000)
"""What a request may hold: enough for every plan that the service makes, and read in a fraction of a second."""

_STRICT = {"extra": "forbid", "use_attribute_docstrings": True}

_VERSIONED = ("pipeline-planner", "ortools", "highspy", "pulp", "numba", "numpy")


class TooLargeError(ValueError):
    """The request is well formed, but larger than this service takes on; the message names the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """What a request may ask for at most."""

    max_actions: int = 400_000
    """Actions of the schedule: 3 x microbatches x what the devices may hold of stages and replicas in all."""
    max_time_limit_s: float = 3600.0
    """Seconds of solving."""
    max_layers: int = 5_000
    """Layers of the profile."""
    max_devices: int = 2_048
    """Devices of the cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """The body of `POST /v1/plans`; a workload alone is one too, with everything else left to its default."""

    __pydantic_config__ = _STRICT

    workload: dict[str, object]
    """A workload document in any form that is read from files."""
    num_microbatches: int | None = None
    """Instead of the workload's own number."""
    options: dict[str, object] = field(default_factory=dict)
    """Options of the problem, on top of the workload's own."""
    limits: Limits = field(default_factory=lambda: Limits(time_limit_s=10.0))
    """When to stop; `max_rounds` makes the answer the same on every machine."""
    priority: int = 0
    """Larger first, among the tenant's own jobs."""
    pinned: bool = False
    """Keep the plan for good."""

    def __post_init__(self) -> None:
        require_integer("submission: priority", self.priority, least=-MAX_PRIORITY, most=MAX_PRIORITY)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What a job solves."""

    problem: Problem
    """The question."""
    limits: Limits
    """When to stop."""

    @property
    def is_deterministic(self) -> bool:
        """Whether rounds, not seconds, end the search."""
        return self.limits.max_rounds is not None

    def render(self) -> str:
        """Canonical JSON; `read_request` is its inverse."""
        return canonical_json(
            {"workload": to_plain(workload_of_problem(self.problem)), "limits": to_plain(self.limits)}
        )

    @property
    def problem_key(self) -> str:
        """The question and the versions that answer it."""
        return _digest({"problem": _question(self.problem), "versions": _versions()})

    @property
    def request_key(self) -> str:
        """The question, how it is searched, and the versions."""
        limits = {"gap": self.limits.gap, "seed": self.limits.seed, "max_rounds": self.limits.max_rounds}
        return _digest({"problem": _question(self.problem), "limits": limits, "versions": _versions()})


def workload_of_problem(problem: Problem) -> Workload:
    """The document that states a problem."""
    return Workload(
        profile=problem.profile,
        cluster=problem.cluster,
        num_microbatches=problem.num_microbatches,
        options=to_plain(problem.options),
    )


def _question(problem: Problem) -> dict[str, Any]:
    return {
        "profile": problem.profile_sha256,
        "cluster": problem.cluster_sha256,
        "num_microbatches": problem.num_microbatches,
        "options": to_plain(problem.options),
    }


@cache
def _versions() -> dict[str, str]:
    return {"python": platform.python_version()} | {name: version(name) for name in _VERSIONED}


def _digest(value: object) -> str:
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def parse_tree(data: bytes) -> dict[str, Any]:
    """The JSON object of a body; raises ValueError for anything else."""
    tree = parse_json(decode_text(data, source=SOURCE), source=SOURCE, ceiling=BODIES)
    if not isinstance(tree, dict):
        raise refusal(SOURCE, "the document is not an object; give {...}")
    return tree


def read_submission(data: bytes, ceilings: Ceilings) -> tuple[Submission, PlanRequest]:
    """What a body asks for. Raises ValueError for what is wrong in it, TooLargeError for what is too much."""
    tree = parse_tree(data)
    submission = _submission_of(tree)
    return submission, PlanRequest(
        problem=problem_of(
            submission.workload,
            source=f"{SOURCE}: workload" if "workload" in tree else SOURCE,
            num_microbatches=submission.num_microbatches,
            options=submission.options,
            ceilings=ceilings,
        ),
        limits=check_limits(submission.limits, ceilings),
    )


def _submission_of(tree: dict[str, Any]) -> Submission:
    """The parts of a body. The workload, which is most of it, is not looked into here: its own reader does that."""
    workload = tree.get("workload", tree)
    if not isinstance(workload, dict):
        return validate(Submission, tree, source=SOURCE)
    rest = {name: part for name, part in tree.items() if name != "workload"} if workload is not tree else {}
    return replace(validate(Submission, {**rest, "workload": {}}, source=SOURCE), workload=workload)


def problem_of(
    tree: dict[str, object],
    *,
    source: str,
    ceilings: Ceilings,
    num_microbatches: int | None = None,
    options: dict[str, object] | None = None,
) -> Problem:
    """The problem of a workload document; its size is estimated from its numbers before anything is built."""
    workload = workload_of(tree, source=source)
    if workload.cluster is None:
        raise refusal(source, "cluster is missing; add it")
    count = workload.num_microbatches if num_microbatches is None else num_microbatches
    if count is None:
        raise refusal(SOURCE, "num_microbatches is missing; add it")
    chosen = validate(Options, {**workload.options, **(options or {})}, source=f"{SOURCE}: options")
    require_size(workload, ceilings, num_microbatches=count, options=chosen)
    return Problem(profile=workload.profile, cluster=workload.cluster, num_microbatches=count, options=chosen)


def require_size(workload: Workload, ceilings: Ceilings, *, num_microbatches: int, options: Options) -> None:
    """Raise TooLargeError if a plan would be larger than this service makes."""
    num_layers = len(workload.profile.layers)
    num_devices = 0 if workload.cluster is None else len(workload.cluster.devices)
    replicas = num_devices if options.max_replicas is None else min(options.max_replicas, num_devices)
    num_seats = min(num_devices * options.max_stages_per_device, num_layers * replicas)
    sizes = {
        "layers": (num_layers, ceilings.max_layers),
        "devices": (num_devices, ceilings.max_devices),
        "actions": (3 * num_microbatches * num_seats, ceilings.max_actions),
    }
    for what, (size, most) in sizes.items():
        if size > most:
            raise TooLargeError(f"{size:,} {what} are above this service's limit of {most:,}; use the command line")


def check_limits(limits: Limits, ceilings: Ceilings) -> Limits:
    """The limits, if this service allows them."""
    if limits.time_limit_s > ceilings.max_time_limit_s:
        raise TooLargeError(f"limits.time_limit_s is above this service's limit of {ceilings.max_time_limit_s:g} s")
    return limits


def read_request(text: str) -> PlanRequest:
    """The request that `PlanRequest.render` wrote down; it was checked before."""
    tree = json.loads(text)
    workload = tree["workload"]
    return PlanRequest(
        problem=Problem(
            profile=validate(ModelProfile, workload["profile"], source="request"),
            cluster=validate(Cluster, workload["cluster"], source="request"),
            num_microbatches=workload["num_microbatches"],
            options=validate(Options, workload.get("options", {}), source="request"),
        ),
        limits=validate(Limits, tree["limits"], source="request"),
    )


def with_limits(text: str, limits: Limits) -> str:
    """The same request with other limits."""
    return replace(read_request(text), limits=limits).render()


def as_document(problem: Problem) -> dict[str, Any]:
    """The workload document of a problem, as `dump_workload` would write it."""
    document = {"format": WORKLOAD_FORMAT, **to_plain(workload_of_problem(problem))}
    return {**document, "profile": profile_to_plain(problem.profile)}
