"""A request becomes a problem with limits, a canonical text, and the two keys under which its answer is found again."""

import json
import platform
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from importlib.metadata import version
from typing import Annotated, Any

from api.jobs.job import LABEL, MAX_PRIORITY, MAX_TAGS
from api.jobs.request_fields import PlanId, Priority, Project, Tags, WorkloadTree
from planner.batch_problem import MAX_BATCH, Question, problem_answered, question_of_workload, workload_of_question
from planner.option_conflicts import require_consistent
from planner.plan import Plan
from planner.problem import Options, Problem
from planner.progress import Limits
from planner.release import RELEASE
from profiles.cluster import Cluster
from profiles.documents.canonical_json import canonical_json, content_sha256, to_plain
from profiles.documents.refusal import refusal, render_value
from profiles.documents.schema_rules import COMPONENT, Stated, given, not_together
from profiles.documents.strict_json import Ceiling, decode_text, parse_json
from profiles.documents.strict_record import StrictRecord
from profiles.documents.validation import validate
from profiles.field_rules import require_integer
from profiles.load import workload_of
from profiles.microbatch_sizes import measured_sizes
from profiles.workload import Workload

SOURCE = "body"
"""Name of the request in messages."""

BODIES = Ceiling(values=500_000, containers=100_000)
"""What a request may hold: enough for every plan that the service makes, and read in a fraction of a second."""

_ROUNDS = given("limits", given("max_rounds", {"type": "integer"}))
_SIZES = given("microbatch_sizes", {"type": "array"})
_SOLVERS = ("ortools", "highspy", "pulp", "numba", "numpy")
_HOW_SOON = ("time_limit_s", "threads")
"""Limits that do not say which plan so many rounds find."""


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
class Submission(StrictRecord):
    """The body of `POST /v1/plans`; a workload alone is one too, with everything else left to its default."""

    __schema_rules__ = {  # noqa: RUF012
        "required": [],
        "anyOf": [{"required": ["workload"]}, given("start_from", {"type": "string"})],
        "allOf": [
            not_together("num_microbatches", "global_batch_size"),
            {"not": {"allOf": [given("start_from", {"type": "string"}), _ROUNDS]}},
            {"not": {"allOf": [given("num_microbatches", {"type": "integer"}), _SIZES]}},
        ],
    }

    workload: WorkloadTree
    """A workload document in any form that is read from files."""
    num_microbatches: Annotated[int, Stated(minimum=1, maximum=2**30)] | None = None
    """Instead of the workload's own number."""
    global_batch_size: Annotated[int, Stated(minimum=1, maximum=MAX_BATCH)] | None = None
    """Samples per iteration, instead of a number of microbatches: their size and number are decided."""
    microbatch_sizes: tuple[Annotated[int, Stated(minimum=1)], ...] | None = None
    """The sizes among which that is decided; None: every measured one."""
    options: Annotated[dict[str, object], Stated({COMPONENT: "Options"})] = field(default_factory=dict)
    """Options of the problem, on top of the workload's own."""
    limits: Limits = field(default_factory=lambda: Limits(time_limit_s=10.0))
    """When to stop; left out: after 10 s. `max_rounds` makes the answer the same on every machine."""
    priority: Priority = 0
    """Larger first, among the tenant's own jobs."""
    pinned: bool = False
    """Keep the plan for good."""
    project: Project = ""
    """Project of the plan; empty: none."""
    tags: Tags = ()
    """Words to find it by."""
    start_from: PlanId | None = None
    """A plan of the tenant's where the search begins, if it fits; without a workload its question is asked again."""

    def __post_init__(self) -> None:
        require_integer("submission: priority", self.priority, least=-MAX_PRIORITY, most=MAX_PRIORITY)
        require_labels(self.project, self.tags)
        if self.start_from is not None and self.limits.max_rounds is not None:
            raise ValueError("submission: start_from and limits.max_rounds are both given; keep one of them")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """A validated question with its limits."""

    problem: Question
    """Profile, cluster, microbatches and options."""
    limits: Limits
    """When to stop."""

    @property
    def is_deterministic(self) -> bool:
        """Whether rounds, not seconds, end the search."""
        return self.limits.max_rounds is not None and self.limits.patience_s is None

    def render(self) -> str:
        """Canonical JSON; `read_request` is its inverse."""
        return canonical_json(
            {"workload": to_plain(workload_of_question(self.problem)), "limits": to_plain(self.limits)}
        )

    @property
    def problem_key(self) -> str:
        """The question and the versions that answer it."""
        return content_sha256({"problem": _question(self.problem), "versions": _versions()})

    @property
    def request_key(self) -> str:
        """The question, how it is searched, and the versions."""
        limits = {name: value for name, value in asdict(self.limits).items() if name not in _HOW_SOON}
        return content_sha256({"problem": _question(self.problem), "limits": limits, "versions": _versions()})


def require_labels(project: str, tags: tuple[str, ...]) -> None:
    """Raise ValueError for a project or tags that cannot be."""
    if len(tags) > MAX_TAGS:
        raise ValueError(f"submission: tags: are more than {MAX_TAGS}; leave some out")
    for name, label in (*(("tags", tag) for tag in tags), *([("project", project)] if project else [])):
        if not LABEL.fullmatch(label):
            raise ValueError(
                f"submission: {name}: {render_value(label)} is not a name; use ASCII letters, digits, dots, dashes "
                "and slashes, at most 63"
            )


def _question(question: Question) -> dict[str, Any]:
    """All that its document states, of profile and cluster their hashes."""
    workload = workload_of_question(question)
    stated = {each.name: getattr(workload, each.name) for each in fields(workload)}
    return stated | {"profile": question.profile_sha256, "cluster": question.cluster_sha256}


@cache
def _versions() -> dict[str, str]:
    own = {"python": platform.python_version(), "pipeline-planner": RELEASE}
    return own | {name: version(name) for name in _SOLVERS}


def parse_tree(data: bytes) -> dict[str, Any]:
    """The JSON object of a body; raises ValueError for anything else."""
    text = decode_text(data, source=SOURCE)
    tree = parse_json(text, source=SOURCE, ceiling=BODIES, has_whole_fractions=True)
    if not isinstance(tree, dict):
        raise refusal(SOURCE, "the document is not an object; give {...}")
    return tree


def read_submission(data: bytes, ceilings: Ceilings) -> tuple[Submission, PlanRequest]:
    """What a body asks for. Raises ValueError for what is wrong in it, TooLargeError for what is too much."""
    return read_tree(parse_tree(data), ceilings)


def read_tree(tree: dict[str, Any], ceilings: Ceilings) -> tuple[Submission, PlanRequest]:
    """`read_submission` of a body that is parsed already."""
    submission = _submission_of(tree)
    source = f"{SOURCE}: workload" if "workload" in tree else SOURCE
    workload = _cut_as_asked(workload_of(submission.workload, source=source), submission)
    question = question_of(workload, source=source, options=submission.options, ceilings=ceilings)
    limits = check_limits(submission.limits, ceilings, asked=tree.get("limits"))
    return submission, PlanRequest(problem=question, limits=limits)


def _cut_as_asked(workload: Workload, submission: Submission) -> Workload:
    """The workload with the microbatches, or the global batch, of the submission instead of its own."""
    count, whole, sizes = submission.num_microbatches, submission.global_batch_size, submission.microbatch_sizes
    if count is not None and (whole is not None or sizes is not None):
        raise refusal(SOURCE, "num_microbatches and global_batch_size are both given; keep one of them")
    if count is not None:
        require_integer("submission: num_microbatches", count, least=1, most=MAX_BATCH)
        return workload.cut_into(count)
    whole = workload.global_batch_size if whole is None else whole
    if whole is None and sizes is not None:
        raise refusal(SOURCE, "microbatch_sizes is given without global_batch_size; add it")
    return workload if whole is None else workload.with_batch(whole, sizes or workload.microbatch_sizes)


def _submission_of(tree: dict[str, Any]) -> Submission:
    """The parts of a body. The workload, which is most of it, is not looked into here: its own reader does that."""
    if "islands" in tree:
        reason = "islands is given, which this release replaced"
        raise refusal(SOURCE, f"{reason}; leave it out, and give the service's workers a Dask scheduler (--scheduler)")
    workload = tree.get("workload", tree)
    if workload is tree and set(tree) <= {field.name for field in fields(Submission)}:
        raise refusal(SOURCE, "workload is missing; add it, or start_from")
    if not isinstance(workload, dict):
        return validate(Submission, tree, source=SOURCE)
    rest = {name: part for name, part in tree.items() if name != "workload"} if workload is not tree else {}
    return replace(validate(Submission, {**rest, "workload": {}}, source=SOURCE), workload=workload)


def problem_of_plan(plan: Plan, tree: dict[str, object], *, source: str, ceilings: Ceilings) -> Problem:
    """What a plan answers: the workload of a document, with the plan's microbatches and options."""
    asked, workload = plan.problem, workload_of(tree, source=source).with_microbatches(plan.problem.num_microbatches)
    options = validate(Options, {**workload.options, **asked.options}, source=f"{SOURCE}: options")
    cluster = require_size(workload, ceilings, source=source, options=options)
    return problem_answered(asked, profile=workload.profile, cluster=cluster, options=options)


def question_of(
    workload: Workload, *, source: str, ceilings: Ceilings, options: dict[str, object] | None = None
) -> Question:
    """The question of a workload; its size is estimated from its numbers before anything is built."""
    if workload.num_microbatches is None and workload.global_batch_size is None and workload.microbatches is None:
        raise refusal(SOURCE, "num_microbatches is missing; add it, microbatches, or global_batch_size")
    chosen = validate(Options, {**workload.options, **(options or {})}, source=f"{SOURCE}: options")
    require_size(workload, ceilings, source=source, options=chosen)
    question = question_of_workload(workload, chosen)
    require_consistent(question)
    return question


def require_size(workload: Workload, ceilings: Ceilings, *, source: str, options: Options) -> Cluster:
    """The cluster of the workload. Raises TooLargeError if a plan would be larger than this service makes."""
    if workload.cluster is None:
        raise refusal(source, "cluster is missing; add it")
    num_layers = len(workload.profile.layers)
    num_devices = len(workload.cluster.devices)
    replicas = num_devices if options.max_replicas is None else min(options.max_replicas, num_devices)
    num_replicas = min(num_devices * options.max_stages_per_device, num_layers * replicas)
    sizes = {
        "layers": (num_layers, ceilings.max_layers),
        "devices": (num_devices, ceilings.max_devices),
        "actions": (3 * _most_microbatches(workload) * num_replicas, ceilings.max_actions),
    }
    for what, (size, most) in sizes.items():
        if size > most:
            raise TooLargeError(f"{size:,} {what} are above this service's limit of {most:,}; use the command line")
    return workload.cluster


def _most_microbatches(workload: Workload) -> int:
    """Microbatches of a plan at most: of a global batch those of the smallest size, all sizes together."""
    if workload.global_batch_size is None or workload.cluster is None:
        return workload.num_microbatches or len(workload.microbatches or ())
    known = workload.microbatch_sizes or measured_sizes(workload.profile, workload.cluster.device_types)
    return sum(workload.global_batch_size // size for size in known if size > 0)


def check_limits(limits: Limits, ceilings: Ceilings, *, asked: object) -> Limits:
    """The limits, if this service allows them; `asked`: as they came, for no time that was left out is too long."""
    most_s = ceilings.max_time_limit_s
    if limits.time_limit_s <= most_s:
        return limits
    if isinstance(asked, dict) and "time_limit_s" in asked:
        raise TooLargeError(f"limits.time_limit_s is above this service's limit; give at most {most_s:g} s")
    return replace(limits, time_limit_s=most_s)


def read_request(text: str) -> PlanRequest:
    """The request that `PlanRequest.render` wrote down; it was checked before."""
    tree = json.loads(text)
    workload = validate(Workload, tree["workload"], source="request")
    return PlanRequest(
        problem=question_of_workload(workload, validate(Options, dict(workload.options), source="request")),
        limits=validate(Limits, tree["limits"], source="request"),
    )
