"""A question that leaves the size and number of microbatches open: one global batch, a problem per size."""

from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

from planner.plan import Plan, ProblemReference
from planner.problem import GlobalBatch, Options, Problem
from profiles.cluster import Cluster
from profiles.documents.canonical_json import content_sha256, to_plain
from profiles.field_rules import MAX_SAMPLES, require_distinct, require_integer
from profiles.microbatch_sizes import measured_sizes, profile_at, why_no_cost
from profiles.model_profile import ModelProfile
from profiles.workload import Workload

MAX_BATCH = 2**30
"""Most samples in one iteration."""

MAX_SIZES = 64
"""Most sizes of microbatches that are looked at."""


@dataclass(frozen=True, kw_only=True)
class BatchProblem:
    """A global batch to be cut into microbatches of any measured size that divides it; the plan says which.

    Raises ValueError that names field, value and remedy where there is no such size, and where a problem at one of them
    would be refused (`planner.problem.Problem`).
    """

    profile: ModelProfile
    """What the layers cost, at one or more sizes."""
    cluster: Cluster
    """Devices with memory, and links."""
    global_batch_size: int
    """Samples per synchronous iteration."""
    microbatch_sizes: tuple[int, ...] | None = None
    """The sizes that may be chosen; None: every measured one that divides the batch."""
    options: Options = field(default_factory=Options)
    """Options of the problem at every size."""

    def __post_init__(self) -> None:
        require_integer("problem: global_batch_size", self.global_batch_size, least=1, most=MAX_BATCH)
        if self.profile.microbatch_size is None:
            raise ValueError(
                f"problem: global_batch_size = {self.global_batch_size} needs a profile that states its "
                f"microbatch_size, but that of {self.profile.name!r} is null; state it, or give num_microbatches"
            )
        if self.microbatch_sizes is not None:
            self._require_sizes(self.microbatch_sizes)
            object.__setattr__(self, "microbatch_sizes", tuple(sorted(self.microbatch_sizes)))
        elif not self.sizes:
            known = ", ".join(map(str, self._measured)) or "none"
            raise ValueError(
                f"problem: global_batch_size = {self.global_batch_size} is not a multiple of any measured microbatch "
                f"size (measured on all devices: {known}) that the options allow; give a multiple of one, or measure "
                "at a size that divides it (pipeplan profile -b)"
            )
        _ = self.candidates

    def _require_sizes(self, sizes: tuple[int, ...]) -> None:
        if not 1 <= len(sizes) <= MAX_SIZES:
            raise ValueError(
                f"problem: microbatch_sizes has {len(sizes)} entries; give 1 to {MAX_SIZES}, or leave it out"
            )
        for size in sizes:
            require_integer("problem: microbatch_sizes", size, least=1, most=MAX_SAMPLES)
            if self.global_batch_size % size:
                raise ValueError(
                    f"problem: microbatch_sizes names {size}, which does not divide global_batch_size = "
                    f"{self.global_batch_size}; leave the size out, or change the batch"
                )
            if reason := why_no_cost(self.profile, size, device_types=self.cluster.device_types):
                raise ValueError(
                    f"problem: microbatch_sizes names {size}, but {reason}; leave it out, measure it (pipeplan profile "
                    '-b), or state "scaling": "linear"'
                )
        require_distinct("problem: microbatch_sizes: size", map(str, sizes))

    @cached_property
    def _measured(self) -> tuple[int, ...]:
        return measured_sizes(self.profile, self.cluster.device_types)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The sizes among which the planner decides, ascending."""
        if self.microbatch_sizes is not None:
            return self.microbatch_sizes
        return tuple(size for size in self._measured if self.global_batch_size % size == 0 and self._is_cut_for(size))

    def _is_cut_for(self, size: int) -> bool:
        """Whether the replicas of a given placement take whole samples of a microbatch of so many."""
        counts = (len(groups) for groups in self.options.placement or () if groups)
        return all((size * Fraction(1, count)).denominator == 1 for count in counts)

    @cached_property
    def profile_sha256(self) -> str:
        """Content hash of the profile."""
        return content_sha256(self.profile)

    @cached_property
    def cluster_sha256(self) -> str:
        """Content hash of the cluster."""
        return content_sha256(self.cluster)

    @cached_property
    def candidates(self) -> tuple[Problem, ...]:
        """The problem at each of the sizes."""
        return tuple(map(self.at, self.sizes))

    def at(self, size: int) -> Problem:
        """The question with microbatches of `size` samples; raises ValueError unless that is one of `sizes`."""
        if size not in self.sizes:
            raise ValueError(
                f"problem: microbatch_size = {size} is none of {', '.join(map(str, self.sizes))}, which are measured, "
                f"allowed and divide global_batch_size = {self.global_batch_size}; choose one of them"
            )
        return Problem(
            profile=profile_at(self.profile, size),
            cluster=self.cluster,
            num_microbatches=self.global_batch_size // size,
            options=self.options,
            batch=GlobalBatch(
                profile=self.profile,
                global_batch_size=self.global_batch_size,
                microbatch_sizes=self.microbatch_sizes,
            ),
        )


def batch_problem_of(problem: Problem) -> BatchProblem | None:
    """The question that the problem is a candidate of, if it is one."""
    if problem.batch is None:
        return None
    return BatchProblem(
        profile=problem.batch.profile,
        cluster=problem.cluster,
        global_batch_size=problem.batch.global_batch_size,
        microbatch_sizes=problem.batch.microbatch_sizes,
        options=problem.options,
    )


Question = Problem | BatchProblem
"""What can be planned: with the microbatches given, or with a global batch."""


def candidates_of(question: Question) -> tuple[Problem, ...]:
    """The question at each size of microbatches that may be chosen; a problem as it is, where none is to be chosen."""
    return question.candidates if isinstance(question, BatchProblem) else (question,)


def question_of_workload(workload: Workload, options: Options) -> Question:
    """The question that a workload with a cluster states.

    Raises ValueError that names what is missing or wrong in it.
    """
    if workload.cluster is None:
        raise ValueError(f"{workload.profile.name}: contains no cluster; add one")
    if workload.global_batch_size is not None:
        return BatchProblem(
            profile=workload.profile,
            cluster=workload.cluster,
            global_batch_size=workload.global_batch_size,
            microbatch_sizes=workload.microbatch_sizes,
            options=options,
        )
    if workload.microbatches is None and workload.num_microbatches is None:
        raise ValueError(f"{workload.profile.name}: num_microbatches is missing; add it, or global_batch_size")
    return Problem(
        profile=workload.profile,
        cluster=workload.cluster,
        num_microbatches=workload.num_microbatches or len(workload.microbatches or ()),
        options=options,
        microbatches=workload.microbatches,
    )


def workload_of_question(question: Question) -> Workload:
    """The document that states a question; of a problem that is a candidate of a batch, that of the batch."""
    batch = question if isinstance(question, BatchProblem) else question.batch
    profile = question.profile if batch is None else batch.profile
    workload = Workload(profile=profile, cluster=question.cluster, options=to_plain(question.options))
    if batch is not None:
        return workload.with_batch(batch.global_batch_size, batch.microbatch_sizes)
    assert isinstance(question, Problem)
    if question.microbatches is not None:
        return workload.with_list(question.microbatches)
    return workload.with_microbatches(question.num_microbatches)


def problem_for(question: Question, plan: Plan) -> Problem:
    """The question as the plan answers it: with microbatches of the size that the plan decided on.

    Raises ValueError where the plan states no size, or none that may be chosen.
    """
    if isinstance(question, Problem):
        return question
    size = plan.problem.microbatch_size
    if size is None:
        raise ValueError("plan: problem.microbatch_size is missing; make the plan again for this global batch")
    return question.at(size)


def problem_answered(
    reference: ProblemReference, *, profile: ModelProfile, cluster: Cluster, options: Options
) -> Problem:
    """The problem that a plan says it answers, on the profile and cluster that it names.

    Raises ValueError where there is no such problem.
    """
    if reference.global_batch_size is None or reference.microbatch_size is None:
        return Problem(
            profile=profile,
            cluster=cluster,
            num_microbatches=reference.num_microbatches,
            options=options,
            microbatches=reference.microbatches,
        )
    question = BatchProblem(
        profile=profile,
        cluster=cluster,
        global_batch_size=reference.global_batch_size,
        microbatch_sizes=reference.microbatch_sizes,
        options=options,
    )
    return question.at(reference.microbatch_size)
