"""A job that is kept going: when devices are lost, a plan for what is left, a recipe, and the program once more."""

import hashlib
import importlib
import os
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from api.failures import InputError
from api.inputs import reading
from api.planning_run import Effort
from api.running.attempts import clear_attempts, with_cluster
from api.running.launching import Launch, write_files
from api.running.notices import notify_service
from api.running.replanning import Replanned, Rest, describe_cost, plan_again
from planner.document import parse_plan, plan_sha256, render_plan
from planner.documents.embedded_problem import enclosed_problem
from planner.errors import InfeasibleProblemError, NoPlanFoundError
from planner.execute.record.rank_record import RankRecord, end_now, is_running, read_records
from planner.execute.record.resumption_record import read_resumption
from planner.launch.job_end import JobEnd, judge_end
from planner.launch.launch_job import LaunchSubmission
from planner.launch.rank_mapping import place_ranks
from planner.plan import Plan
from planner.problem import Problem
from planner.progress import Limits
from planner.replanning.migration import Recipe, render_recipe
from profiles.documents.whole_file import write_whole
from profiles.workload import dump_cluster

POLL_S = 0.05
"""How often a running job is looked at."""
SETTLE_S = 0.2
"""How long others that go at the same moment are waited for."""
SILENCE_S = 20.0
"""How long processes on other machines are waited for after their job has ended."""
TARGET = "executor"
"""Plans that it cannot run are of no use here."""
_STALLS = 2
"""So many ends in a row without a newer checkpoint end the healing: the cause is not the device."""
_CHECKPOINTS = "checkpoints"
"""Folder of the job's folder, unless the program names one."""

Tell = Callable[[str], None]


class JobAttempt(Protocol):
    """A job that was started once."""

    def code(self) -> int | None:
        """Its exit code; None while it runs."""

    def stop(self) -> None:
        """Ask what is left of it to end; returns at once."""

    def down_hosts(self) -> Sequence[str]:
        """Hosts that the launcher takes for lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealParams:
    """How often, and for how long, a run is healed."""

    most_heals: int
    """Losses after which the job is given up."""
    search_s: float
    """Seconds for each new plan."""
    bytes_per_s: float
    """What the storage of checkpoints gives to all devices together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Heal:
    """One loss and how the job continued."""

    lost: Mapping[str, str]
    """Devices, and why they are taken for lost."""
    iteration: int
    """Iterations that the job continues from."""
    checkpoint: str | None
    """Where it continues from; None: from the beginning."""
    num_devices: int
    """Devices of the new plan."""
    iteration_ns: int
    """Its iteration, as planned."""
    restored_bytes: int
    """What only the checkpoint has, where live copies are kept; else what is read from it, over all devices."""
    cost: Mapping[str, Any]
    """What the plan was chosen by: bytes and time that move, iterations that are left, and what the plan would have
    cost for which least has to move."""
    has_copies: bool
    """Whether the program keeps copies of its state in memory."""
    noticed_ns: int
    """When the loss was seen, by the wall clock."""
    planned_s: float
    """Seconds for the new plan."""
    stopped_s: float
    """Seconds from the loss until everything had ended."""
    started_s: float
    """Seconds from the loss until the job was started anew."""
    source: str | None = None
    """Where the state really came from: `checkpoint`, `live copies` or `beginning`; None: the program did not say."""
    storage_bytes: int | None = None
    """Bytes that its processes really read from the checkpoint; None: the program did not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealedRun:
    """How a healed run ended, and every heal on the way."""

    code: int
    """Exit code of the last attempt."""
    reason: str
    """Why it was not healed, or not again; empty for a job that came to its end."""
    heals: tuple[_Heal, ...]

    def summarise(self) -> dict[str, Any]:
        """The same as JSON-ready data."""
        return {"exit_code": self.code, "reason": self.reason, "heals": [asdict(heal) for heal in self.heals]}


@dataclass(kw_only=True)
class _Healer:
    """Starts a launch, and starts it again under other plans as long as that may help."""

    start: Callable[[Launch], JobAttempt]
    params: HealParams
    tell: Tell
    console: Console
    heals: list[_Heal] = field(default_factory=list)
    _stalls: int = 0

    def run(self, launch: Launch, *, plan: Plan, problem: Problem) -> HealedRun:
        """Until the program ends well, fails by itself, or nothing more can be done."""
        while True:
            launch = self._recorded(launch)
            attempt = self.start(launch)
            importlib.import_module("planner.planning")  # takes seconds, for which nobody waits now
            try:
                outcome = self._attend(attempt, launch, plan=plan, problem=problem)
            except BaseException:
                attempt.stop()
                raise
            if isinstance(outcome, HealedRun):
                return outcome
            launch, plan, problem = outcome

    def _attend(
        self, attempt: JobAttempt, launch: Launch, *, plan: Plan, problem: Problem
    ) -> HealedRun | tuple[Launch, Plan, Problem]:
        """How it all ended, or what is to be started next."""
        before = newest_checkpoint(launch)
        code, end = self._watch(attempt, launch)
        if code == 0:
            self._note_resumption(launch)
            return self._result(0, "")
        is_on = self._note_resumption(launch) or newest_checkpoint(launch) != before
        self._stalls = 0 if is_on else self._stalls + 1
        if reason := self._why_not(end):
            attempt.stop()
            self._await_end(attempt, launch, lost=end.lost)
            return self._result(_code(attempt), reason)
        for device, why in end.lost.items():
            self.tell(f"{device} is lost: {why}")
        notify_service("device_lost", {"lost": dict(end.lost)}, url=None)
        try:
            return self._heal(attempt, launch, end=end, plan=plan, problem=problem)
        except (ValueError, InfeasibleProblemError, NoPlanFoundError) as error:
            self._await_end(attempt, launch, lost=end.lost)
            return self._result(_code(attempt), f"there is no plan for what is left: {error}")

    def _note_resumption(self, launch: Launch) -> bool:
        """Note how the attempt continued; whether that was later than the one before it did."""
        resumption = read_resumption(Path(str(launch.job.record_at)))
        if resumption is None or not self.heals:
            return False
        earlier = self.heals[-2].iteration if len(self.heals) > 1 else 0
        self.heals[-1] = replace(
            self.heals[-1],
            iteration=resumption.iteration,
            source=resumption.source,
            storage_bytes=resumption.storage_bytes,
        )
        return resumption.source == "live copies" and resumption.iteration > earlier

    def _recorded(self, launch: Launch) -> Launch:
        folder = launch.folder / f"attempt-{len(self.heals)}"
        job = replace(launch.job, record_at=str(folder), checkpoints_at=str(_checkpoints_of(launch)))
        job = replace(job, copies_at=str(_copies_of(launch)))
        return replace(launch, job=replace(job, cluster_at=str(launch.folder / "cluster.json")))

    def _watch(self, attempt: JobAttempt, launch: Launch) -> tuple[int | None, JobEnd]:
        """Until the job has ended, or a process of it has; None: others still run."""
        folder = Path(str(launch.job.record_at))
        while (code := attempt.code()) is None:
            end = read_end(folder, is_over=False)
            if end.lost or end.failure:
                time.sleep(SETTLE_S)
                return None, read_end(folder, is_over=False)
            time.sleep(POLL_S)
        if code == 0:
            return 0, JobEnd(lost={}, failure="")
        down, until = attempt.down_hosts(), time.monotonic() + SILENCE_S
        while _may_run(read_records(folder), down=down) and time.monotonic() < until:
            time.sleep(POLL_S)
        return code, read_end(folder, is_over=True, down_hosts=down)

    def _why_not(self, end: JobEnd) -> str:
        if end.failure:
            return f"{end.failure}: that is the program's failure, and another plan would not help"
        if not end.lost:
            return "no device was lost: the program failed, or was ended from outside"
        if len(self.heals) >= self.params.most_heals:
            return f"{', '.join(end.lost)} lost after {len(self.heals)} heals, the most that --heals allows"
        if self._stalls >= _STALLS:
            return (
                f"{', '.join(end.lost)} lost, as before without a newer checkpoint in between: the program seems to "
                "end its processes itself, or checkpoints are too far apart"
            )
        return ""

    def _heal(
        self, attempt: JobAttempt, launch: Launch, *, end: JobEnd, plan: Plan, problem: Problem
    ) -> tuple[Launch, Plan, Problem]:
        noticed, begin = time.time_ns(), time.monotonic()
        attempt.stop()
        end_now(read_records(Path(str(launch.job.record_at))))
        again = plan_rest(
            launch, plan=plan, problem=problem, lost=tuple(end.lost), params=self.params, console=self.console
        )
        planned_s = time.monotonic() - begin
        self._await_end(attempt, launch, lost=end.lost)
        stopped_s = time.monotonic() - begin
        checkpoint = newest_checkpoint(launch)
        if _keeps_copies(launch):
            recipe = replace(again.recipe, plan_before=launch.job.plan_sha256, lost=tuple(end.lost))
            again = replace(again, recipe=recipe)
        launch, recipe = relaunch(launch, again, number=len(self.heals) + 1, checkpoint=checkpoint)
        assert again.plan.evidence is not None
        heal = _Heal(
            lost=end.lost,
            iteration=recipe.iteration or 0,
            checkpoint=None if checkpoint is None else str(checkpoint),
            num_devices=len(again.plan.devices),
            has_copies=_keeps_copies(launch),
            iteration_ns=again.plan.evidence.makespan_ns,
            restored_bytes=0 if checkpoint is None else recipe.restored_bytes,
            cost=again.summarise_cost(),
            noticed_ns=noticed,
            planned_s=planned_s,
            stopped_s=stopped_s,
            started_s=time.monotonic() - begin,
        )
        self.heals.append(heal)
        self.tell(_describe_heal(heal))
        self.tell(describe_cost(again))
        return launch, again.plan, without(problem, end)

    def _await_end(self, attempt: JobAttempt, launch: Launch, *, lost: Collection[str]) -> None:
        """Until nothing of the job runs any more; of lost devices nobody will hear."""
        folder = Path(str(launch.job.record_at))
        while attempt.code() is None:
            time.sleep(POLL_S)
        until = time.monotonic() + SILENCE_S
        while _may_run(read_records(folder), lost=lost) and time.monotonic() < until:
            time.sleep(POLL_S)

    def _result(self, code: int, reason: str) -> HealedRun:
        return HealedRun(code=code, reason=reason, heals=tuple(self.heals))


def plan_rest(
    launch: Launch, *, plan: Plan, problem: Problem, lost: Sequence[str], params: HealParams, console: Console
) -> Replanned:
    """A plan for what is left, by what its iterations and the restoring of its state take together."""
    effort = Effort(limits=Limits(time_limit_s=params.search_s), style="quiet")
    rest = Rest(bytes_per_s=params.bytes_per_s, is_restart=not _keeps_copies(launch))
    steps = argument_after("--steps", launch.job.program) or ""
    if steps.isdecimal():
        newest = newest_checkpoint(launch)
        rest = replace(rest, steps_left=max(1, int(steps) - (0 if newest is None else iteration_of(newest))))
    return plan_again(problem, plan, lost=lost, effort=effort, target=TARGET, console=console, rest=rest)


def relaunch(launch: Launch, again: Replanned, *, number: int, checkpoint: Path | None) -> tuple[Launch, Recipe]:
    """The launch under a new plan that continues from a checkpoint, and its recipe; both stand in the job's folder."""
    from planner.execute.table.placement import hosts_of, load_cluster_tree

    recipe = again.recipe
    if checkpoint is not None:
        recipe = replace(recipe, checkpoint=str(checkpoint), iteration=iteration_of(checkpoint))
    plan_at = launch.folder / f"plan-{number}.json"
    text = render_plan(again.plan)
    write_whole(plan_at, text)
    cluster = (launch.folder / "cluster.json").read_text(encoding="utf-8")
    job = replace(
        launch.job,
        placement=place_ranks(again.plan, hosts_of(load_cluster_tree(cluster), source="cluster")),
        plan_at=str(plan_at),
        plan_sha256=plan_sha256(again.plan),
        recipe_at=None,
    )
    launch = replace(launch, job=job, plan_text=text)
    if checkpoint is not None or recipe.plan_before is not None:
        launch = with_recipe(launch, render_recipe(recipe, again.plan), number=number)
    return launch, recipe


def with_recipe(launch: Launch, text: str, *, number: int) -> Launch:
    """The launch with a recipe in its folder by which the program continues."""
    recipe_at = launch.folder / f"recipe-{number}.json"
    write_whole(recipe_at, text)
    return replace(launch, job=replace(launch.job, recipe_at=str(recipe_at)))


def _may_run(records: Sequence[RankRecord], *, down: Sequence[str] = (), lost: Collection[str] = ()) -> bool:
    """Whether a process that is not given up, by its host or its device, may not have come to its end yet."""
    left = (record for record in records if record.host not in down and record.device not in lost)
    return any(is_running(record) is not False for record in left)


def read_end(folder: Path, *, is_over: bool, down_hosts: Collection[str] = ()) -> JobEnd:
    """What the records of an attempt say of its end; `is_over`: nothing of it runs any more.

    Records are read before it is seen who runs, and once more after: the one that ended in between has left its last
    word.
    """
    gone = {record.rank for record in read_records(folder) if _is_gone(record, is_over=is_over)}
    records = read_records(folder)
    silent = {record.rank for record in records if record.rank in gone and record.state == "running"}
    return judge_end(records, silent=silent, down_hosts=down_hosts)


def _is_gone(record: RankRecord, *, is_over: bool) -> bool:
    runs = is_running(record)
    return runs is False or (runs is None and is_over)


def _code(attempt: JobAttempt) -> int:
    return attempt.code() or 1


def without(problem: Problem, end: JobEnd) -> Problem:
    """The question for the devices that are left."""
    from planner.what_if.device_loss import without_devices

    return without_devices(problem.at_its_size(), set(end.lost))


def argument_after(option: str, program: Sequence[str]) -> str | None:
    """The value of an option of the program, as far as it can be seen from outside."""
    for place, argument in enumerate(program):
        if argument == option and place + 1 < len(program):
            return program[place + 1]
        if argument.startswith(f"{option}="):
            return argument.partition("=")[2]
    return None


def _checkpoints_of(launch: Launch) -> Path:
    """Where the program writes its checkpoints."""
    named = argument_after("--checkpoint", launch.job.program)
    return (launch.folder / _CHECKPOINTS if named is None else Path(named)).absolute()


def _copies_of(launch: Launch) -> Path:
    """Where every host keeps copies of the job's state, in memory."""
    named = argument_after("--copies", launch.job.program)
    mark = hashlib.sha256(str(launch.folder.absolute()).encode()).hexdigest()[:16]
    return Path(f"/dev/shm/pipeplan-{os.getuid()}-{mark}" if named is None else named)


def _keeps_copies(launch: Launch) -> bool:
    """Whether the program keeps copies of its state in memory."""
    return argument_after("--copy-every", launch.job.program) not in (None, "0")


def newest_checkpoint(launch: Launch) -> Path | None:
    """The newest whole checkpoint."""
    found = sorted(_checkpoints_of(launch).glob("step-*"))
    return next((path for path in reversed(found) if (path / ".metadata").exists()), None)


def iteration_of(checkpoint: Path) -> int:
    """How many iterations a checkpoint has, by its name."""
    return int(checkpoint.name.rpartition("-")[2])


def _describe_heal(heal: _Heal) -> str:
    """A heal, as a line for people."""
    whence = "from the beginning" if heal.checkpoint is None else f"from iteration {heal.iteration} ({heal.checkpoint})"
    whence += ", or later if what the others have in memory is whole" if heal.has_copies else ""
    return (
        f"goes on {whence} on {heal.num_devices} devices, {heal.iteration_ns / 1e6:,.3f} ms per iteration as planned; "
        f"{heal.restored_bytes:,} bytes to restore; planned in {heal.planned_s:.1f} s, started after "
        f"{heal.started_s:.1f} s"
    )


def attend(
    source: str,
    launch: Launch,
    *,
    cluster: str | None,
    start: Callable[[Launch], JobAttempt],
    params: HealParams,
    tell: Tell,
    console: Console,
) -> HealedRun:
    """Launch the plan in the file `source` and keep its job going; InputError where that cannot be."""
    _require_healable(launch)
    launch, plan, problem = _with_whole_cluster(launch, source=source, cluster=cluster)
    write_files(launch, LaunchSubmission(commands=()))
    clear_attempts(launch.folder)
    healer = _Healer(start=start, params=params, tell=tell, console=console)
    try:
        return healer.run(launch, plan=plan, problem=problem)
    finally:
        if _keeps_copies(launch):
            shutil.rmtree(_copies_of(launch), ignore_errors=True)


def _with_whole_cluster(launch: Launch, *, source: str, cluster: str | None) -> tuple[Launch, Plan, Problem]:
    """The launch with the cluster that its plan in the file `source` brings along, with that plan and its problem."""
    with reading():
        plan = parse_plan(launch.plan_text.encode(), source=source)
        problem = enclosed_problem(plan, source=source)
    if problem is None:
        raise InputError(f"--heal: {source} contains no profile and cluster; plan again with this version")
    text = launch.cluster_text if cluster is not None else None
    return with_cluster(launch, text or dump_cluster(problem.cluster)), plan, problem


def _require_healable(launch: Launch) -> None:
    """Raise InputError for programs that cannot continue by themselves, or that would continue from another run."""
    require_program(launch.job.program)
    if "--resume" not in launch.job.program and (old := newest_checkpoint(launch)) is not None:
        raise InputError(f"--heal: {old} belongs to an earlier run; add --resume to continue it, or remove it")


def require_program(program: Sequence[str]) -> None:
    """Raise InputError for programs that cannot continue by themselves."""
    if argument_after("--load", program) is not None:
        raise InputError("the program's --load starts from another job's checkpoint; use --resume instead")
    if program[:2] == ("-m", "planner.execute") and not argument_after("--checkpoint-every", program):
        raise InputError("--heal: without checkpoints every loss restarts the job; add --checkpoint-every N")
