"""A Slurm of several nodes on this machine alone: own configuration, own ports, no root folder touched."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo")
INSTALL = "apt-get install slurmctld slurmd slurm-client"
WAIT_S = 60

_CONFIGURATION = """\
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SlurmdParameters=config_overrides
SwitchType=switch/none
ReturnToService=2
SchedulerParameters=sched_interval=1,batch_sched_delay=0,bf_interval=1
InactiveLimit=0
KillWait=2
MinJobAge=300
SlurmctldPort={controller}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdSpoolDir={folder}/spool.%n
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
TopologyPlugin=topology/tree
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing_programs() -> list[str]:
    """What has to be installed first."""
    return [name for name in PROGRAMS if shutil.which(name) is None]


@contextmanager
def slurm_cluster(folder: Path, *, num_nodes: int, cpus: int = 4) -> Iterator[dict[str, str]]:
    """Runs nodes n0, n1, ... (at least 2), half of them under each of two switches.

    Gives the variables under which Slurm's programs find them.
    """
    folder.mkdir(parents=True)
    for name in ("state", *(f"spool.n{number}" for number in range(num_nodes))):
        (folder / name).mkdir()
    ports = _free_ports(num_nodes + 1)
    nodes = "\n".join(
        f"NodeName=n{number} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} "
        f"RealMemory=1000 State=UNKNOWN"
        for number, port in enumerate(ports[1:])
    )
    configuration = folder / "slurm.conf"
    configuration.write_text(_CONFIGURATION.format(folder=folder, controller=ports[0], nodes=nodes))
    half = max(1, num_nodes // 2)
    switches = (f"SwitchName=leaf0 Nodes=n[0-{half - 1}]", f"SwitchName=leaf1 Nodes=n[{half}-{num_nodes - 1}]")
    (folder / "topology.conf").write_text("\n".join((*switches, "SwitchName=spine Switches=leaf[0-1]", "")))
    environment = os.environ | {"SLURM_CONF": str(configuration)}
    daemons = []
    try:
        daemons.append(_start(["slurmctld", "-D", "-c"], environment, log=folder / "slurmctld.out"))
        for number in range(num_nodes):
            command = ["slurmd", "-D", "-c", "-N", f"n{number}"]
            daemons.append(_start(command, environment, log=folder / f"slurmd{number}.out"))
        _wait_until_idle(environment, num_nodes=num_nodes, folder=folder)
        yield environment
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            _end(daemon)


def _end(daemon: "subprocess.Popen[bytes]") -> None:
    """A node daemon may wait for tasks of a job that was just cancelled; it is not waited for."""
    try:
        daemon.wait(timeout=10)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _start(command: list[str], environment: dict[str, str], *, log: Path) -> "subprocess.Popen[bytes]":
    with log.open("wb") as file:
        return subprocess.Popen(command, env=environment, stdout=file, stderr=file, stdin=subprocess.DEVNULL)


def _wait_until_idle(environment: dict[str, str], *, num_nodes: int, folder: Path) -> None:
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        done = subprocess.run(
            ["sinfo", "--noheader", "--Node", "--format=%N %T"], env=environment, capture_output=True, text=True
        )
        if done.stdout.split().count("idle") == num_nodes:
            return
        time.sleep(0.3)
    logs = "\n".join(f"{log.name}: {log.read_text(errors='replace')[-1500:]}" for log in folder.glob("*.log"))
    raise AssertionError(f"Slurm did not start: {done.stdout}{done.stderr}\n{logs}")
