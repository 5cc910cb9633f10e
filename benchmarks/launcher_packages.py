"""Do SkyPilot and Ray take what is written for them? Asked of their own packages, each in an environment of its own.

`make launchers` makes the environments and docs/benchmarks/launcher_packages.md. Ray runs on this machine: two nodes,
which stand for the two hosts of a plan. SkyPilot needs a cloud; its classes and its command line parse what we write.
"""

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import describe_commit, describe_machine, line

ROOT = Path(__file__).resolve().parent.parent
PLAN = ROOT / "examples" / "two-ranks.json"
PROGRAM = (str(ROOT / "examples" / "train.py"), "--steps", "3")
WAIT_S = 600
"""How long a job may take; Ray's first worker takes most of a minute here."""

_PARSE_TASK = """\
import json, sys, sky
task = sky.Task.from_yaml(sys.argv[1])
(resources,) = task.resources
print(json.dumps({"name": task.name, "nodes": task.num_nodes, "run": task.run, "mounts": task.file_mounts,
                  "accelerators": resources.accelerators, "spot": resources.use_spot}))
"""
_PARSE_WORDS = """\
import sys, click
from sky.client.cli import command
words, group = sys.argv[1:], command.cli
for word in words[:2]:
    group = group.get_command(click.Context(group), word)
group.make_context(words[1], words[2:])
"""
_PATCH = """\
resources: {use_spot: true}
envs: {NCCL_DEBUG: INFO}
config:
  kubernetes:
    pod_config:
      spec:
        tolerations: [{key: nvidia.com/gpu, operator: Exists}]
"""


@dataclass(frozen=True, kw_only=True)
class Check:
    """A row: what was asked, and what came of it."""

    package: str
    """Whose code was asked."""
    what: str
    """What it was given."""
    said: str
    """What it did with it."""
    passed: bool
    """Whether that is right."""


def pipeplan(*words: str, environment: Mapping[str, str] | None = None, with_errors: bool = False) -> str:
    """What the command prints, to both streams if wanted; AssertionError if it fails."""
    command = [sys.executable, "-m", "api", *words]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | (environment or {}), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise AssertionError(f"{' '.join(words)}: {done.stderr.strip()[-400:]}")
    return done.stdout + (done.stderr if with_errors else "")


def ask(python: Path, script: str, *words: str) -> subprocess.CompletedProcess[str]:
    """A script in another environment."""
    return subprocess.run([str(python), "-c", script, *words], capture_output=True, text=True, check=False)


def version(python: Path, package: str) -> str:
    """Package and version, as installed there."""
    script = f"from importlib.metadata import version; print(version({package!r}))"
    return f"{package} {ask(python, script).stdout.strip()}"


def two_hosts(folder: Path) -> Path:
    """The cluster of the plan with its two cores on hosts of their own."""
    cluster = {"devices": [{"name": f"core{number}", "host": f"host{number}"} for number in range(2)]}
    path = folder / "cluster.json"
    path.write_text(json.dumps(cluster))
    return path


def check_sky(python: Path, folder: Path) -> Iterator[Check]:
    """Tasks and commands, parsed."""
    package = version(python, "skypilot")
    (folder / "patch.yaml").write_text(_PATCH)
    plain: tuple[str, ...] = ()
    rented = ("--accelerators", "H100:8", "--infra", "aws/us-east-1", "--image", "docker:image:1")
    for what, words in {
        "a task": plain,
        "accelerators, cloud and image": rented,
        "a patch: spot, variables, pods' tolerations": (*rented, "--patch", str(folder / "patch.yaml")),
    }.items():
        yield check_task(python, folder, words=words, package=package, what=what)
    verbs = {
        "launch": ("jobs", "launch", "--yes", "--detach-run", str(folder / "task.yaml")),
        "status": ("jobs", "queue", "--all", "--output=json"),
        "logs": ("jobs", "logs", "--name=job", "--no-follow"),
        "cancel": ("jobs", "cancel", "--yes", "--name=job"),
    }
    for verb, command in verbs.items():
        done = ask(python, _PARSE_WORDS, *command)
        said = f"`sky {' '.join(command[:2])}` parses its options" if not done.returncode else done.stderr[-200:]
        yield Check(package=package, what=verb, said=said, passed=done.returncode == 0)


def check_task(python: Path, folder: Path, *, words: Sequence[str], package: str, what: str) -> Check:
    """One task's file through `sky.Task.from_yaml`, compared with what was meant."""
    job = folder / "job"
    job.mkdir(exist_ok=True)
    (job / "plan.json").write_bytes(PLAN.read_bytes())
    printed = pipeplan(
        "launch", "sky", str(PLAN), *words, "--dry-run", "--folder", str(job), "--", "train.py", 'it\'s "$x"'
    )
    text = printed.partition("task.yaml\n")[2].rpartition("\n$ sky")[0]
    (folder / "task.yaml").write_text(text)
    done = ask(python, _PARSE_TASK, str(folder / "task.yaml"))
    if done.returncode:
        return Check(package=package, what=what, said=done.stderr.strip()[-200:], passed=False)
    found = json.loads(done.stdout.splitlines()[-1])
    passed = (
        found["nodes"] == 1
        and found["run"].endswith("-- train.py 'it'\"'\"'s \"$x\"'\n")
        and list(found["mounts"].values()) == [str(job / "plan.json")]
        and found["accelerators"] == ({"H100": 8} if "--accelerators" in words else None)
        and found["spot"] == ("--patch" in words)
    )
    return Check(package=package, what=what, said="`sky.Task.from_yaml` gives back what was meant", passed=passed)


@contextmanager
def ray_cluster(binaries: Path, folder: Path) -> Iterator[dict[str, str]]:
    """A Ray of two nodes on this machine; gives the variables under which it is found."""
    ports = [_free_port() for _ in range(3)]
    environment = {
        "PATH": f"{binaries}:{os.environ['PATH']}",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{ports[1]}",
    }
    head = (
        *("--head", f"--port={ports[0]}", "--dashboard-host=127.0.0.1", f"--dashboard-port={ports[1]}"),
        f"--ray-client-server-port={ports[2]}",
    )
    address = f"127.0.0.1:{ports[0]}"
    nodes: list[str] = []
    daemons = []
    try:
        for words in ((*head, f"--temp-dir={folder}"), (f"--address={address}",)):
            daemons.append(_start_node(binaries, words, environment))
            nodes = _wait_for_nodes(binaries / "python", address, count=len(daemons))
        yield environment | {"RAY_NODES": " ".join(nodes)}
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            daemon.wait(timeout=WAIT_S)


def _start_node(binaries: Path, words: Sequence[str], environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """A node that ends with the process that is returned."""
    return subprocess.Popen(
        [str(binaries / "ray"), "start", "--block", "--num-cpus=2", "--disable-usage-stats", *words],
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _wait_for_nodes(python: Path, address: str, *, count: int) -> list[str]:
    """The ids of all nodes, as soon as there are so many."""
    script = (
        "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False); "
        "print(*[node['NodeID'] for node in ray.nodes()])"
    )
    end, nodes = time.monotonic() + WAIT_S, list[str]()
    while len(nodes) < count and time.monotonic() < end:
        nodes = ask(python, script, address).stdout.split()
    if len(nodes) < count:
        raise AssertionError(f"Ray has {len(nodes)} of {count} nodes after {WAIT_S} s; look into its temporary folder")
    return nodes


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def check_ray(binaries: Path, folder: Path) -> Iterator[Check]:
    """Jobs that are run, read, cancelled and refused."""
    package = version(binaries / "python", "ray")
    here = ("--here", "--processors", "--folder", str(folder / "torchrun"))
    alone = losses(pipeplan("launch", "torchrun", str(PLAN), *here, "--", *PROGRAM, with_errors=True))
    with ray_cluster(binaries, folder / "ray") as environment:
        nodes = environment["RAY_NODES"].split()
        one = ("--host", f"this-host={nodes[0]}")
        two = ("--cluster", str(two_hosts(folder)), *(f"--host=host{n}={nodes[n]}" for n in range(2)))
        for what, hosts in {"one host, two processes": one, "two hosts, a worker on each": two}.items():
            job = folder / f"job{len(hosts)}"
            start_ray(job, hosts, PROGRAM, environment)
            state = wait_for(job, environment, lambda state: state.startswith(("ended", "gone")))
            log = pipeplan("job", "logs", str(job), environment=environment)
            same = losses(log) == alone and len(alone) == 3
            workers = len(set(re.findall(r"RayTrainWorker pid=(\d+)", log)))
            yield Check(
                package=package,
                what=what,
                said=f"`job status`: {state}; losses in `job logs` {'are' if same else 'are NOT'} torchrun's",
                passed=state == "ended: succeeded" and same and workers >= 1,
            )
        yield check_cancelling(folder, one, environment=environment, package=package)
        yield check_refusal(folder, environment=environment, package=package)


def start_ray(job: Path, hosts: Sequence[str], program: Sequence[str], environment: Mapping[str, str]) -> None:
    """Submit a job to the Ray of this machine."""
    options = ("--folder", str(job), "--python", sys.executable, "--processors", "--max-restarts", "0")
    pipeplan("launch", "ray", str(PLAN), *options, *hosts, "--", *program, environment=environment)


def wait_for(job: Path, environment: Mapping[str, str], until: Callable[[str], bool]) -> str:
    """The first status for which `until` holds, or the last one in time."""
    end, state = time.monotonic() + WAIT_S, ""
    while time.monotonic() < end:
        state = pipeplan("job", "status", str(job), environment=environment).strip()
        if until(state):
            break
        time.sleep(2)
    return state


def check_cancelling(folder: Path, hosts: Sequence[str], *, environment: Mapping[str, str], package: str) -> Check:
    """A sleeping job, ended by `job cancel`, with none of its processes left."""
    begun = folder / "begun"
    program = folder / "sleeps.py"
    program.write_text(f"import os, time\nopen({str(begun)!r} + str(os.getpid()), 'w').close()\ntime.sleep(600)\n")
    start_ray(folder / "cancelled", hosts, (str(program),), environment)
    wait_for(folder / "cancelled", environment, lambda _: len(list(folder.glob("begun*"))) == 2)
    processes = [int(file.name.removeprefix("begun")) for file in folder.glob("begun*")]
    pipeplan("job", "cancel", str(folder / "cancelled"), environment=environment)
    state = wait_for(folder / "cancelled", environment, lambda state: state.startswith("ended"))
    end = time.monotonic() + WAIT_S
    while (left := [one for one in processes if is_alive(one)]) and time.monotonic() < end:
        time.sleep(1)
    said = f"`job status`: {state}; {len(processes)} processes ran, {len(left)} left"
    return Check(
        package=package,
        what="`job cancel`",
        said=said,
        passed=state == "ended: was stopped" and len(processes) == 2 and not left,
    )


def is_alive(process: int) -> bool:
    """Whether the process is there and not merely waiting to be buried."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def check_refusal(folder: Path, *, environment: Mapping[str, str], package: str) -> Check:
    """A host that is no node."""
    job = folder / "refused"
    start_ray(job, ("--host", "this-host=nowhere"), PROGRAM, environment)
    state = wait_for(job, environment, lambda state: state.startswith("ended"))
    log = pipeplan("job", "logs", str(job), environment=environment)
    told = "host 'nowhere' is no node of this Ray cluster" in log
    said = f"`job status`: {state}; `job logs` {'names' if told else 'does NOT name'} it"
    return Check(package=package, what="a host that is no node", said=said, passed=state == "ended: failed" and told)


def losses(text: str) -> list[tuple[str, str]]:
    """Iterations and losses that the example prints, once each: two nodes on one machine both pass on what it says."""
    return sorted(set(re.findall(r"iteration (\d+): loss ([0-9.]+)", text)))


def render(checks: Sequence[Check]) -> str:
    """The committed table."""
    rows = [line([one.package, one.what, one.said, "yes" if one.passed else "NO"]) for one in checks]
    return "\n".join(
        [
            "# What SkyPilot and Ray do with what is written for them",
            "",
            "`make launchers`: their packages in environments of their own, our command beside them. Ray runs on this "
            "machine, two nodes; SkyPilot parses only, since a run needs a cloud.",
            "",
            f"Machine: {describe_machine()}. Commit: {describe_commit()}.",
            "",
            line(["package", "given", "outcome", "right"]),
            line(["---"] * 4),
            *rows,
            "",
        ]
    )


def main() -> None:
    """Exit code 1 if anything is not right."""
    parser = argparse.ArgumentParser(prog="benchmarks.launcher_packages", description=__doc__)
    parser.add_argument("--sky", type=Path, default=ROOT / ".venv-sky/bin", help="programs of SkyPilot's environment")
    parser.add_argument("--ray", type=Path, default=ROOT / ".venv-ray/bin", help="programs of Ray's environment")
    parser.add_argument("-o", "--output", type=Path, help="where the table is written")
    options = parser.parse_args()
    checks = []
    with tempfile.TemporaryDirectory(prefix="launchers-") as folder:
        for name, run in (("sky", check_sky), ("ray", check_ray)):
            (Path(folder) / name).mkdir()
            path = options.sky / "python" if name == "sky" else options.ray
            for check in run(path, Path(folder) / name):
                print(check, flush=True)
                checks.append(check)
    if options.output is not None:
        options.output.write_text(render(checks), encoding="utf-8")
    sys.exit(0 if all(check.passed for check in checks) else 1)


if __name__ == "__main__":
    main()
