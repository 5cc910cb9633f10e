"""One start of a job that is kept going: through torchrun's agents, or through Slurm."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from api.failures import InputError
from api.running.launching import Launch, as_started_here, ask, submit_again
from planner.launch.job_commands import Submitted, cancel_command, on_cluster, status_command
from planner.launch.launch_job import Command, LaunchSubmission
from planner.launch.slurm import find_job_state, may_run

_POLL_S = 0.05
"""Seconds between two looks at agents."""
_SLURM_POLL_S = 0.5
"""Seconds between two questions to Slurm."""
_DOWN = ("down", "drain", "fail", "error")
_LEFT_BEHIND = ("attempt-*", "plan-[0-9]*.json", "recipe-[0-9]*.json")


class _TorchrunAttempt:
    """Agents started from here; one that fails ends the others."""

    def __init__(self, commands: Sequence[Command], *, output: int | None) -> None:
        """`output`: where their standard output goes; None: where ours goes."""
        self.agents = [
            subprocess.Popen(
                command.arguments,
                env=os.environ | dict(command.environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
            )
            for command in commands
        ]
        self._code = 0

    def code(self) -> int | None:
        """The first bad exit code once all have ended."""
        codes = [agent.poll() for agent in self.agents]
        self._code = self._code or next((code for code in codes if code), 0)
        if self._code:
            self.stop()
        return None if None in codes else self._code

    def stop(self) -> None:
        """Ask those that run to end."""
        for agent in self.agents:
            if agent.poll() is None:
                agent.terminate()

    def wait(self) -> int:
        """The exit code, once all have ended; an exception in the wait ends them."""
        try:
            while (code := self.code()) is None:
                time.sleep(_POLL_S)
            return code
        finally:
            self.stop()
            for agent in self.agents:
                agent.wait()

    def down_hosts(self) -> tuple[str, ...]:
        """Nobody watches over hosts here."""
        return ()


class _SlurmAttempt:
    """A job in Slurm's queue."""

    def __init__(self, submitted: Submitted, *, folder: Path, hosts: Sequence[str]) -> None:
        self.submitted, self.folder, self.hosts = submitted, folder, hosts
        self._looked = 0.0
        self._code: int | None = None

    def code(self) -> int | None:
        """What stands in the folder, or 1 for a job that Slurm ended; Slurm is asked twice a second."""
        if self._code is None and time.monotonic() - self._looked >= _SLURM_POLL_S:
            self._look()
            self._looked = time.monotonic()
        return self._code

    def _look(self) -> None:
        try:
            answer = ask(Command(arguments=status_command(self.submitted, folder=str(self.folder))))
        except InputError as error:
            if "Invalid job id" not in str(error):
                raise
            answer = ""
        answer = find_job_state(answer)
        if may_run(answer):
            return
        exit_file = self.folder / "exit"
        told = exit_file.read_text(encoding="utf-8").strip() if exit_file.exists() else ""
        self._code = int(told) if told.isdecimal() else int(not answer.startswith("COMPLETED"))

    def stop(self) -> None:
        """Take the job out of the queue."""
        ask(Command(arguments=cancel_command(self.submitted, folder=str(self.folder))))

    def down_hosts(self) -> tuple[str, ...]:
        """Nodes that Slurm does not use any more."""
        return slurm_down_hosts(self.hosts, submitted=self.submitted)


def slurm_down_hosts(hosts: Sequence[str], *, submitted: Submitted) -> tuple[str, ...]:
    """Those of the nodes that the job's Slurm does not use any more."""
    cluster = submitted.number.partition(";")[2]
    command = on_cluster(cluster, "sinfo", "--noheader", "--Node", f"--nodes={','.join(hosts)}", "--format=%N %T")
    rows = [line.split() for line in ask(Command(arguments=command)).splitlines()]
    return tuple(dict.fromkeys(row[0] for row in rows if len(row) == 2 and row[1].startswith(_DOWN)))


def start_torchrun(
    launch: Launch, *, render: Callable[[Launch], LaunchSubmission], output: int | None
) -> _TorchrunAttempt:
    """Agents of the launch, on this machine or through ssh."""
    return _TorchrunAttempt(as_started_here(render(launch)), output=output)


def run_agents(commands: Sequence[Command]) -> int:
    """Run torchrun's agents until all have ended; one that fails ends the others. Returns the first bad exit code."""
    return _TorchrunAttempt(commands, output=None).wait()


def start_slurm(launch: Launch, *, render: Callable[[Launch], LaunchSubmission]) -> _SlurmAttempt:
    """The launch in Slurm's queue."""
    submission = render(launch)
    submitted = Submitted(launcher="slurm", name=launch.job.name)
    hosts = [launch.job.real_host(host) for host in launch.job.placement.hosts]
    submitted = submit_again(submission, submitted=submitted, folder=launch.folder)
    return _SlurmAttempt(submitted, folder=launch.folder, hosts=hosts)


def clear_attempts(folder: Path) -> None:
    """Take away what an earlier job that was kept going left in the folder, checkpoints aside."""
    for pattern in _LEFT_BEHIND:
        for path in folder.glob(pattern):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def with_cluster(launch: Launch, text: str) -> Launch:
    """The launch with the cluster as a document of its own, which stays when plans change."""
    job = replace(launch.job, cluster_at=str(launch.folder / "cluster.json"))
    return replace(launch, job=job, cluster_text=text)
