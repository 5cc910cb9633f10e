"""One start of a job that is kept continuing Kubernetes: asked after through `kubectl`, which sees pods and nodes.

Pods write no records into the job's folder. What their processes report stands in the pods' termination messages, and
becomes the records of the attempt here, so that a loss is judged as everywhere.
"""

import subprocess
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from api.failures import InputError
from api.inputs import reading
from api.running.healing import argument_after
from api.running.launching import Launch, ask, submit_again
from api.running.patch_files import read_patches
from planner.execute.record.rank_record import RankRecord, read_records, write_record
from planner.execute.record.resumption_record import RECORD_VARIABLE, record_resumption
from planner.launch.job_commands import (
    LaunchRequest,
    Submitted,
    cancel_command,
    logs_command,
    node_states_command,
    pod_states_command,
)
from planner.launch.kubernetes import (
    CLUSTER_PATH,
    RECIPE_PATH,
    RECORDS_FOLDER,
    TERMINATION_MESSAGE,
    Kind,
    PodNeeds,
    plan_path,
    render_kubernetes,
)
from planner.launch.launch_job import Command, LaunchSubmission
from planner.launch.pod_state import PodsSeen, PodState, read_down_nodes, read_pods

POLL_S = 2.0
"""Seconds between two questions to Kubernetes."""
SETTLE_S = 60.0
"""How long a loss is waited for once a pod has failed: Kubernetes tells of a dead node after most of a minute, and the
pods of other nodes may notice before."""
_GONE_S = 60.0
"""How long a job without any pod is taken to be on its way."""
SILENT_S = 600.0
"""How long a Kubernetes that does not answer is asked again: the job may well be running."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPace:
    """Seconds between questions to Kubernetes, and patience with missing answers."""

    poll_s: float = POLL_S
    """Seconds between two looks."""
    settle_s: float = SETTLE_S
    """Seconds for which a loss is waited for once a pod has failed."""
    gone_s: float = _GONE_S
    """Seconds for which a job without any pod is taken to be on its way."""
    silent_s: float = SILENT_S
    """Seconds for which a Kubernetes that does not answer is asked again."""


def render_pods_again(
    launch: Launch, request: LaunchRequest, *, avoided: Collection[str] = (), is_attended: bool = False
) -> LaunchSubmission:
    """The manifest of a launch as it is requested, with plan, cluster and recipe beside each other in its ConfigMap."""
    job, recipe = launch.job, ""
    if job.recipe_at is not None:
        recipe = Path(job.recipe_at).read_text(encoding="utf-8")
    told = {"record_at": RECORDS_FOLDER, "report_at": TERMINATION_MESSAGE} if is_attended else {"record_at": None}
    job = replace(job, plan_at=plan_path(launch.plan_text), recipe_at=RECIPE_PATH if recipe else None, **told)
    at = CLUSTER_PATH if launch.cluster_text is not None else None
    job = replace(job, cluster_at=at, checkpoints_at=None, copies_at=None)
    needs = PodNeeds(
        image=request.image,
        namespace=request.namespace,
        with_gpus=request.with_gpus,
        max_restarts=request.max_restarts,
        is_attended=is_attended,
        avoided=tuple(avoided),
    )
    with reading():
        return render_kubernetes(
            job,
            kind=cast(Kind, request.controller),
            needs=needs,
            plan_text=launch.plan_text,
            beside={RECIPE_PATH: recipe, CLUSTER_PATH: launch.cluster_text or ""},
            patches=read_patches(request.patches),
            folder=str(launch.folder),
        )


def require_attendable(launch: Launch, *, controller: str, is_fetched: bool) -> None:
    """Raise InputError for jobs on Kubernetes that could not be kept going."""
    program = launch.job.program
    if controller == "trainjob":
        raise InputError("--heal: a TrainJob's runtime decides on restarts; give --controller jobset or volcano")
    if is_fetched:
        raise InputError("--heal: --plan-url serves one fixed plan; leave it out")
    if "--resume" not in program:
        raise InputError("--heal: only pods see their checkpoints; add --resume to the program")
    if argument_after("--copy-every", program) not in (None, "0"):
        raise InputError("--heal: live copies are lost with their pods; leave --copy-every out")
    if program[:2] == ("-m", "planner.execute") and argument_after("--checkpoint", program) is None:
        raise InputError(
            "--heal: no folder for checkpoints is given; add --checkpoint FOLDER, on a volume that all pods see"
        )


class PodStarter:
    """Starts attempts one after the other, and remembers which nodes were lost."""

    def __init__(self, request: LaunchRequest, *, submitted: Submitted, pace: PodPace | None = None) -> None:
        self.request, self.submitted, self.pace = request, submitted, pace or PodPace()
        self.avoided: dict[str, None] = {}
        """Nodes that were lost, in order."""

    def __call__(self, launch: Launch) -> "_PodAttempt":
        """Apply the job of a launch; pods of an earlier one that hang on a dead node are not taken for its own."""
        command = Command(arguments=pod_states_command(self.submitted))
        earlier = frozenset(pod.uid for pod in read_pods(ask(command)))
        submission = render_pods_again(launch, self.request, avoided=self.avoided, is_attended=True)
        submit_again(submission, submitted=self.submitted, folder=launch.folder)
        return _PodAttempt(launch, starter=self, earlier=earlier)


class _PodAttempt:
    """A job on Kubernetes."""

    def __init__(self, launch: Launch, *, starter: PodStarter, earlier: Collection[str]) -> None:
        self.launch, self.starter, self.earlier = launch, starter, earlier
        self.folder = Path(str(launch.job.record_at))
        self.hosts = [launch.job.real_host(host) for host in launch.job.placement.hosts]
        self.begun = time.monotonic()
        self._looked = self.begun - starter.pace.poll_s
        self._failed: float | None = None
        self._answered = self.begun
        self._code: int | None = None
        self._ending: subprocess.Popen[bytes] | None = None
        self._lost: dict[str, str] = {}
        self._expect_ranks()

    def _expect_ranks(self) -> None:
        """A record per process that says that it runs, on a machine that is not this one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for slot in self.launch.job.placement.slots:
            host = self.launch.job.real_host(slot.host)
            record = RankRecord(
                rank=slot.rank, device=slot.device, host=host, machine=f"on {host}", process=0, started=0
            )
            write_record(self.folder, record)

    def code(self) -> int | None:
        """Its exit code once it has ended, and is gone if it was to end; Kubernetes is asked every few seconds."""
        if self._ending is not None:
            return None if self._ending.poll() is None else self._code or 1
        if self._code is None and time.monotonic() - self._looked >= self.starter.pace.poll_s:
            self._look()
            self._looked = time.monotonic()
        return self._code

    def _look(self) -> None:
        now = time.monotonic()
        try:
            seen = self._seen()
        except InputError:
            if now - self._answered > self.starter.pace.silent_s:
                raise
            return
        self._answered = now
        code = seen.ended(hosts=self.hosts)
        if code == 1 and not seen.is_explained(hosts=self.hosts):
            self._failed = self._failed or now
            code = 1 if now - self._failed >= self.starter.pace.settle_s else None
        elif code is None and not seen.pods and now - self.begun > self.starter.pace.gone_s:
            code = 1
        if code is not None:
            self._conclude(seen)
            self._code = code

    def _seen(self) -> PodsSeen:
        pods = ask(Command(arguments=pod_states_command(self.starter.submitted)))
        return PodsSeen(pods=read_pods(pods, without=self.earlier), down=down_nodes(self.hosts))

    def _conclude(self, seen: PodsSeen) -> None:
        """Write down how every process ended; one of a healthy host that does not say was ended with the others."""
        self._lost = seen.lost_hosts(self.hosts)
        self.starter.avoided |= dict.fromkeys(self._lost)
        told = {report.rank: report for pod in seen.pods for report in pod.reports}
        for record in read_records(self.folder):
            if record.rank in told:
                write_record(self.folder, told[record.rank])
            elif record.host not in self._lost and not _has_failed(seen.pods, record.host):
                write_record(self.folder, replace(record, state="ended", was_asked=True))
            elif record.host not in self._lost:
                write_record(self.folder, replace(record, state="ended", code=1, at_ns=time.time_ns()))
        for resumption in (pod.resumption for pod in seen.pods if pod.resumption is not None):
            record_resumption(resumption, {RECORD_VARIABLE: str(self.folder)})

    def stop(self) -> None:
        """Keep what its pods have said, and take the job away; `code` waits until it is gone."""
        if self._ending is not None:
            return
        command = logs_command(self.starter.submitted, folder=str(self.launch.folder), follow=False)
        with suppress(InputError):
            (self.folder / "log").write_text(ask(Command(arguments=command)), encoding="utf-8")
        self._ending = subprocess.Popen(
            cancel_command(self.starter.submitted, folder=str(self.launch.folder)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def down_hosts(self) -> Sequence[str]:
        """Nodes that are gone, or whose pod was taken away."""
        return tuple(self._lost)


def down_nodes(hosts: Sequence[str]) -> dict[str, str]:
    """Those of the nodes that Kubernetes cannot use any more, and why."""
    return read_down_nodes(ask(Command(arguments=node_states_command())), hosts=hosts)


def _has_failed(pods: Sequence[PodState], host: str) -> bool:
    return any(pod.phase == "Failed" and pod.host == host for pod in pods)
