"""Jobs that are launched for real: through torchrun on this machine, and through a Slurm that the tests start."""

import gzip
import http.server
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.cli import main
from planner.document import plan_sha256, render_plan
from planner.plan import Plan
from tests.free_ports import free_port
from tests.integration.clean_end import require_clean_end
from tests.integration.slurm_cluster import INSTALL, missing_programs, slurm_cluster
from tests.long_runs import long_only
from tests.planner.execute.orders import make_random_plan
from tests.planner.execute.test_enter import environment, losses, start_ranks

ROOT = Path(__file__).parents[3]
TWO = make_random_plan("1 0", cut=(2, 2), num_microbatches=4)
"""Rank 0 is device 1."""
THREE = make_random_plan("2 0 1 2", num_microbatches=8, cut=(1, 1, 1, 1), seed=3)
FOUR = make_random_plan("3 0 1 2 3", num_microbatches=8, cut=(1, 1, 1, 1, 1), seed=3)
PROGRAM = ["-m", "planner.execute", "--model", "execute_models_for_launch:model", "--steps", "2"]
LIMIT_S = 120


@pytest.fixture(autouse=True)
def _surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The model is importable on every rank, and its chain is as long as the plan's."""
    (tmp_path / "execute_models_for_launch.py").write_text(
        "from execute_models import vectors\n"
        "import os\n"
        "def model():\n"
        "    kinds = 'w' * int(os.environ['NUM_LAYERS'])\n"
        "    return vectors(kinds, num_microbatches=8)\n"
    )
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}")
    monkeypatch.chdir(tmp_path)


def write(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **hosts: str) -> list[str]:
    """The plan and its cluster as arguments."""
    monkeypatch.setenv("NUM_LAYERS", str(sum(len(stage.layers) for stage in plan.stages)))
    (tmp_path / "plan.json").write_text(render_plan(plan))
    cluster = {"devices": [{"name": name, "host": host} for name, host in hosts.items()]}
    (tmp_path / "cluster.json").write_text(json.dumps(cluster))
    return [str(tmp_path / "plan.json"), "--cluster", str(tmp_path / "cluster.json"), "--processors"]


@pytest.mark.parametrize("launcher", ["torchrun", "slurm", "ray"])
def test_a_host_that_is_no_machine_is_refused(launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    """Tests that every launcher refuses a host's name that is none, and takes one with an underscore."""
    given = write(TWO, tmp_path, monkeypatch, d0="user@h0", d1="node_1")[:3]
    assert main(["launch", launcher, *given, "--dry-run", "--", "train.py"]) == 2
    assert "host 'user@h0' cannot be" in capsys.readouterr().err
    named = ["--host", "user@h0=node_0", "--host", "user@h0=node_0"]
    assert main(["launch", launcher, *given, *named, "--dry-run", "--", "train.py"]) == 0
    assert main(["launch", launcher, *given, *named, "--host", "user@h0=x", "--dry-run", "--", "train.py"]) == 2
    assert "--host user@h0=x: user@h0 is node_0 already" in capsys.readouterr().err


def run_forked_ranks(plan: Plan, given: list[str], to: Path) -> list[list[float]]:
    """The losses of the plan without a launcher."""
    ranks = start_ranks([[given[0], *PROGRAM[2:], "--losses", to]] * len(plan.devices))
    assert [code for code, _ in ranks] == [0] * len(plan.devices), ranks
    return losses(to)


def wait(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The status in which a job ends."""
    end = time.monotonic() + LIMIT_S
    state = ""
    while time.monotonic() < end and not state.startswith(("ended", "gone")):
        time.sleep(0.3)
        capsys.readouterr()
        assert main(["job", "status", str(folder)]) == 0
        state = capsys.readouterr().out.strip()
    return state


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    if missing := missing_programs():
        pytest.fail(f"{', '.join(missing)} is missing: {INSTALL} (`make test` does)", pytrace=False)
    with slurm_cluster(tmp_path_factory.mktemp("slurm") / "cluster", num_nodes=3) as variables:
        yield variables


@pytest.mark.parametrize(
    ("plan", "hosts"),
    [
        pytest.param(TWO, {"d0": "n0", "d1": "n1"}, id="two tasks"),
        pytest.param(
            *(FOUR, {"d0": "n1", "d1": "n0", "d2": "n0", "d3": "n2"}),
            id="four tasks",
            marks=long_only,
        ),
    ],
)
def test_slurm_trains_as_planned(plan, hosts, slurm, tmp_path: Path, monkeypatch, capsys):
    """Tests that jobs of two and four tasks on nodes of Slurm have exactly the losses of ranks without a launcher."""
    given = write(plan, tmp_path, monkeypatch, **hosts)
    alone = run_forked_ranks(plan, given, tmp_path / "forked.losses")
    monkeypatch.setenv("SLURM_CONF", slurm["SLURM_CONF"])
    folder = tmp_path / "job of slurm"
    options = ["--folder", str(folder), "--python", sys.executable, "--master-addr", "127.0.0.1"]
    more = ["--losses", str(tmp_path / "slurm.losses"), "--trace", str(tmp_path / "trace")]
    assert main(["launch", "slurm", *given, *options, "--", *PROGRAM, *more]) == 0
    assert "slurm has plan-" in capsys.readouterr().out
    state = wait(folder, capsys)
    assert main(["job", "logs", str(folder)]) == 0
    log = capsys.readouterr().out
    assert state == "ended with 0", log
    require_clean_end(0, log)
    assert "iteration 1: loss" in log
    assert losses(tmp_path / "slurm.losses") == alone
    assert len(alone) == 2
    for rank, device in enumerate(plan.devices):
        assert json.loads((tmp_path / "trace" / f"rank{rank}.json").read_text())["device"] == device


def test_the_first_code_of_a_slurm_job_is_kept(slurm, tmp_path: Path, monkeypatch, capsys):
    """Tests that a rank that fails ends the others, and that the job ends with its code, not with that of a kill."""
    given = write(FOUR, tmp_path, monkeypatch, d0="n0", d1="n0", d2="n1", d3="n2")
    (tmp_path / "fails.py").write_text(
        "import os, sys, time\nsys.exit(3) if os.environ['RANK'] == '2' else time.sleep(600)"
    )
    monkeypatch.setenv("SLURM_CONF", slurm["SLURM_CONF"])
    folder = tmp_path / "job"
    options = ["--folder", str(folder), "--python", sys.executable, "--", str(tmp_path / "fails.py")]
    assert main(["launch", "slurm", *given, *options]) == 0
    assert wait(folder, capsys) == "ended with 3"
    assert "hetjob" in (folder / "job.sbatch").read_text()


def test_slurms_nodes_and_switches_are_discovered(slurm, tmp_path: Path, monkeypatch):
    """Tests that a real Slurm is asked for nodes and topology, and that its leaf and spine switches are the network."""
    monkeypatch.setenv("SLURM_CONF", slurm["SLURM_CONF"])
    assert main(["cluster", "discover", "slurm", "--cpus", "-o", str(tmp_path / "cluster.json")]) == 0
    cluster = json.loads((tmp_path / "cluster.json").read_text())
    assert [device["host"] for device in cluster["devices"]] == ["n0", "n1", "n2"]
    joined = {frozenset((link["a"], link["b"])) for link in cluster["links"]}
    assert {
        frozenset(pair) for pair in (("n0", "spine"), ("n1", "leaf1"), ("n2", "leaf1"), ("leaf1", "spine"))
    } < joined
    assert main(["cluster", "discover", "slurm", "--cpus", "--flat", "-o", str(tmp_path / "flat.json")]) == 0
    assert json.loads((tmp_path / "flat.json").read_text())["switches"] == ["network"]


def test_a_slurm_job_is_cancelled(slurm, tmp_path: Path, monkeypatch, capsys):
    """Tests that a running job is seen to run, is ended by `job cancel`, and that its folder is not taken meanwhile."""
    given = write(TWO, tmp_path, monkeypatch, d0="n0", d1="n1")
    monkeypatch.setenv("SLURM_CONF", slurm["SLURM_CONF"])
    (tmp_path / "sleep.py").write_text("import time; time.sleep(600)")
    launch = ["launch", "slurm", *given, "--folder", str(tmp_path / "job"), "--python", sys.executable]
    launch += ["--", str(tmp_path / "sleep.py")]
    assert main(launch) == 0
    capsys.readouterr()
    assert main(["job", "status", str(tmp_path / "job")]) == 0
    assert capsys.readouterr().out.split()[0] in ("PENDING", "CONFIGURING", "RUNNING")
    assert main(launch) == 2
    assert "has a job" in capsys.readouterr().err
    assert main(["job", "cancel", str(tmp_path / "job")]) == 0
    assert wait(tmp_path / "job", capsys).startswith("ended: CANCELLED")
    (tmp_path / "job" / "exit").write_text("143\n")  # a script that outlives its tasks
    assert wait(tmp_path / "job", capsys).startswith("ended: CANCELLED")
    assert main(launch) == 0, "the folder of a cancelled job is free"
    number = json.loads((tmp_path / "job" / "launch.json").read_text())["number"]
    subprocess.run(["scancel", number], check=True)
    assert wait(tmp_path / "job", capsys).startswith("ended: CANCELLED"), "by whomever"


@long_only
def test_agents_of_different_sizes_seat_every_rank(tmp_path: Path, monkeypatch):
    """Tests that the printed commands of two hosts, one with one process and one with two, run the plan together."""
    given = write(THREE, tmp_path, monkeypatch, d0="b", d1="b", d2="a")
    alone = run_forked_ranks(THREE, given, tmp_path / "forked.losses")
    from planner.launch.launch_job import LaunchJob
    from planner.launch.rank_mapping import place_ranks
    from planner.launch.torchrun import render_torchrun

    hosts = {"d0": ("b", 0), "d1": ("b", 1), "d2": ("a", 0)}
    job = LaunchJob(
        name="job",
        placement=place_ranks(THREE, hosts),
        program=(*PROGRAM, "--losses", str(tmp_path / "losses"), "--trace", str(tmp_path / "trace")),
        plan_at=given[0],
        cluster_at=given[2],
        plan_sha256=plan_sha256(THREE),
        python=sys.executable,
        on_processors=True,
    )
    submission = render_torchrun(job, master="127.0.0.1", port=free_port())
    agents = [
        subprocess.Popen(["sh", "-c", command.render()], stderr=subprocess.PIPE, text=True)
        for command in submission.commands
    ]
    errors = [agent.communicate(timeout=LIMIT_S)[1] for agent in agents]
    for agent, said in zip(agents, errors, strict=True):
        require_clean_end(agent.returncode, said)
    assert losses(tmp_path / "losses") == alone
    assert json.loads((tmp_path / "trace" / "rank2.json").read_text())["device"] == THREE.devices[2]


def test_a_detached_job_is_asked_about_and_read(tmp_path: Path, monkeypatch, capsys):
    """Tests that agents go on by themselves, that their exit code is kept, and that their log can be read."""
    given = write(TWO, tmp_path, monkeypatch, d0="a", d1="a")
    said = "f'says {os.environ[\"PIPEPLAN_DEVICE\"]}\\n'"  # at once: another rank says something, too
    (tmp_path / "fails.py").write_text(f"import os, sys\nsys.stdout.write({said})\nsys.exit(3)\n")
    folder = tmp_path / "job"
    launch = ["launch", "torchrun", *given, "--detach", "--folder", str(folder), "--", str(tmp_path / "fails.py")]
    assert main(launch) == 0
    assert wait(folder, capsys) == "ended with 3"
    assert main(["job", "logs", str(folder)]) == 0
    assert "says d" in capsys.readouterr().out


def test_a_detached_job_is_cancelled(tmp_path: Path, monkeypatch, capsys):
    """Tests that cancelling ends all processes of a detached job."""
    given = write(TWO, tmp_path, monkeypatch, d0="a", d1="a")
    (tmp_path / "sleep.py").write_text("import time; time.sleep(600)")
    folder = tmp_path / "job"
    launch = ["launch", "torchrun", *given, "--detach", "--folder", str(folder), "--", str(tmp_path / "sleep.py")]
    assert main(launch) == 0
    capsys.readouterr()
    assert main(["job", "status", str(folder)]) == 0
    assert capsys.readouterr().out == "running (1 agents)\n"
    assert main(["job", "cancel", str(folder)]) == 0
    assert wait(folder, capsys) == "ended: CANCELLED"


def enter(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """One process, as a launcher starts it."""
    seat = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "PLAN_NODE": "a"}
    command = [sys.executable, "-m", "planner.execute.enter", *map(str, arguments)]
    return subprocess.run(
        command, env=os.environ | seat | variables, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_process_becomes_the_program_in_its_seat(tmp_path: Path, monkeypatch):
    """Tests that rank, device and plan are set, that the program sees its own arguments, and that Slurm's count."""
    plan, *more = write(TWO, tmp_path, monkeypatch, d0="a", d1="b")
    (tmp_path / "show.py").write_text(
        "import os, sys\n"
        "print(*sys.argv[1:], *(os.environ[n] for n in ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'PIPEPLAN_DEVICE')))\n"
    )
    words = [plan, "--sha256", plan_sha256(TWO), *more, "--", tmp_path / "show.py", "--", "x y"]
    assert enter(*words).stdout == "-- x y 1 0 2 d0\n"
    counted = {"SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_NTASKS": "2", "SLURMD_NODENAME": "b"}
    seat = dict.fromkeys(("RANK", "LOCAL_RANK", "WORLD_SIZE", "PLAN_NODE"), "")
    done = subprocess.run(
        [sys.executable, "-m", "planner.execute.enter", *map(str, words)],
        env={key: value for key, value in os.environ.items() if key not in seat} | counted,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "-- x y 0 0 2 d1\n", done.stderr


def test_the_plan_is_fetched_and_unpacked(tmp_path: Path, monkeypatch):
    """Tests that the plan may be a gzipped file, or stand at an address, and is the same plan."""
    plan, *more = write(TWO, tmp_path, monkeypatch, d0="a", d1="b")
    (tmp_path / "plan.json.gz").write_bytes(gzip.compress(Path(plan).read_bytes()))
    (tmp_path / "show.py").write_text("import os; print(len(open(os.environ['PIPEPLAN_PLAN']).read()))")
    handler = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), lambda *a: handler(*a, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        address = f"http://127.0.0.1:{server.server_address[1]}/plan.json"
        for source in (address, tmp_path / "plan.json.gz"):
            done = enter(source, "--sha256", plan_sha256(TWO), *more, "--", tmp_path / "show.py")
            assert done.stdout == f"{len(render_plan(TWO))}\n", done.stderr
    finally:
        server.shutdown()
        server.server_close()


def test_a_world_that_is_not_the_plans_is_refused(tmp_path: Path, monkeypatch):
    """Tests that another plan, number of processes, host, memory or device ends each process with what differs."""
    plan, *more = write(TWO, tmp_path, monkeypatch, d0="a", d1="b")
    good = ["--sha256", plan_sha256(TWO), *more, "--", "-m", "this"]
    cases = [
        (enter(plan, "--sha256", "0" * 64, *more, "--", "-m", "this"), "is not the plan that was submitted"),
        (enter(plan, *good, WORLD_SIZE="3"), "the plan runs on 2 devices (d1, d0), but 3 processes were started"),
        (enter(plan, *good, PLAN_NODE="c"), "process 0 of host 'c' has no device: the plan uses 0 there"),
        (enter(plan, *good, LOCAL_RANK="1"), "process 1 of host 'a' has no device: the plan uses 1 there"),
        (enter(tmp_path / "none.json", *good), "none.json"),
    ]
    cluster = {"devices": [{"name": f"d{i}", "host": "ab"[i], "type": "NVIDIA Z9000"} for i in range(2)]}
    (tmp_path / "cluster.json").write_text(json.dumps(cluster))
    more.remove("--processors")
    cases.append((enter(plan, "--sha256", plan_sha256(TWO), *more, "--", "-m", "this"), "not match the plan"))
    for done, message in cases:
        assert done.returncode == 2, done
        assert message in done.stderr
        assert done.stderr.startswith("planner.execute: ")
        assert done.stdout == ""
