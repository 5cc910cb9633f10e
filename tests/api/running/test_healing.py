"""Jobs that lose devices: processes are killed, planned for anew, and go on to the losses of a run by hand."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from api.cli import main
from api.running.healing import HealedRun, HealParams, attend, read_end
from api.running.launching import JobPaths, Launch, make_launch
from planner.document import parse_plan, plan_sha256, render_plan
from planner.execute.record import rank_record
from planner.execute.record.rank_record import RankRecord, read_records, write_record
from planner.execute.table.layout import make_layout
from planner.launch.job_end import JobEnd
from planner.launch.launch_job import rank_arguments
from planner.problem import Options
from planner.progress import Limits
from tests.api.listening import listening
from tests.integration.forked_ranks import Rank, start_rank
from tests.integration.slurm_cluster import INSTALL, missing_programs, slurm_cluster
from tests.long_runs import shortened
from tests.planner.execute.orders import make_random_plan
from tests.planner.execute.test_enter import environment, losses, start_ranks
from tests.planner.export.chains import make_chain
from tests.planner.hasty import make_plan

LIMIT_S = 120
SAMPLES = 12
"""Of a microbatch of the models."""
MODELS = """
import os, signal
from dataclasses import replace
from functools import partial
import torch
from execute_models import in_two, vectors

def model():
    return vectors("wwwwww", num_microbatches=4)

def scheduled():
    adam = partial(torch.optim.AdamW, lr=0.01)
    schedule = partial(torch.optim.lr_scheduler.StepLR, step_size=2, gamma=0.5)
    return replace(model(), optimizer=adam, schedule=schedule)

def dying(model=model):
    whole = model()
    def batch(number):
        if number == 3 and os.environ["PIPEPLAN_DEVICE"] == os.environ["VICTIM"]:
            os.kill(os.getpid(), signal.SIGKILL)
        return whole.batch(number)
    return replace(whole, batch=batch)

def dying_scheduled():
    return dying(scheduled)

def wide():
    return replace(scheduled(), parallelize=in_two)

def dying_wide():
    return dying(wide)

def failing():
    whole = model()
    def batch(number):
        if number == 3 and os.environ["RANK"] == "1":
            raise RuntimeError("a mistake of the user's")
        return whole.batch(number)
    return replace(whole, batch=batch)
"""
PRETENDING = """
import os, signal, sys, time
from pathlib import Path

folder, how = Path(os.environ.get("PIPEPLAN_CHECKPOINTS", sys.argv[-1])), sys.argv[1]
recipe = os.environ.get("PIPEPLAN_RECIPE", "none")
if how == "always" or recipe == "none":
    if os.environ["RANK"] == "0" and how != "always":
        (folder / "step-00000002").mkdir(parents=True)
        (folder / "step-00000002" / ".metadata").touch()
    if os.environ["RANK"] == "0" and how != "sleeps":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)
print(os.environ["PIPEPLAN_DEVICE"], "went on by", Path(recipe).name, file=sys.stderr, flush=True)
"""
"""A program without torch: its first process is killed, and what is left goes on."""


class ForkedAttempt:
    """Ranks of a launch without a launcher: forks of a process that has imported torch."""

    def __init__(self, launch: Launch) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        size = len(launch.job.placement.slots)
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size)}
        module, *words = rank_arguments(launch.job, is_here=True)[1:]
        self.logs = [launch.folder / f"log-{launch.job.plan_sha256[:8]}-{rank}" for rank in range(size)]
        self.processes = [
            start_rank(
                Rank(
                    arguments=words,
                    environment=environment(**common, RANK=str(rank), LOCAL_RANK=str(rank)),
                    folder=launch.folder,
                    log=log,
                    program=module,
                )
            )
            for rank, log in enumerate(self.logs)
        ]

    def code(self) -> int | None:
        """All of them are waited for: the healer looks at records while they run."""
        codes = [process.poll() for process in self.processes]
        return None if None in codes else next(filter(None, codes), 0)

    def stop(self) -> None:
        for process in self.processes:
            process.terminate()

    def down_hosts(self) -> tuple[str, ...]:
        return ()


@pytest.fixture(autouse=True)
def _surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models_for_healing.py").write_text(MODELS)
    (tmp_path / "pretend.py").write_text(PRETENDING)
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}")
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def plan_text() -> str:
    """Two stages on two devices, each on a host of its own."""
    options = Options(max_replicas=1, uneven_replication=False, skip_edges=False, max_stages_per_device=1)
    problem = make_chain("wwwwww", num_devices=2, num_microbatches=4, options=options)
    plan = make_plan(problem, limits=Limits(time_limit_s=60, max_rounds=2))
    assert len(plan.devices) == 2
    return render_plan(plan)


def heal(tmp_path: Path, plan_text: str, program: list[str], *, most_heals: int = 3) -> tuple[HealedRun, list[str]]:
    """The end of a job whose ranks are forked, and what was said."""
    (tmp_path / "plan.json").write_text(plan_text)
    where = JobPaths(cluster=None, folder=str(tmp_path / "job"), hosts=(), plan_url=None)
    source = str(tmp_path / "plan.json")
    launch = make_launch(source, program, name=None, where=where, python=sys.executable, on_processors=True)
    told: list[str] = []
    healed = attend(
        source,
        launch,
        cluster=None,
        start=ForkedAttempt,
        params=HealParams(most_heals=most_heals, search_s=0.5, bytes_per_s=1e9),
        tell=told.append,
        console=Console(stderr=True),
    )
    return healed, told


def executor(model: str, tmp_path: Path, *more: str) -> list[str]:
    words = ["-m", "planner.execute", "--model", f"models_for_healing:{model}", "--steps", "6"]
    return [*words, "--checkpoint-every", "2", "--losses", str(tmp_path / "healed"), *more]


def test_a_killed_rank_is_healed_to_the_bit(tmp_path: Path, plan_text: str, monkeypatch: pytest.MonkeyPatch):
    """Tests that after a rank was killed the job goes on under a new plan by its recipe, from one step for all layers.

    Tests that its losses are, to the bit, those of a run that was stopped there and resumed by hand under the new plan.
    """
    victim = parse_plan(plan_text.encode()).devices[1]
    monkeypatch.setenv("VICTIM", victim)
    healed, told = heal(tmp_path, plan_text, executor("dying", tmp_path))
    assert (healed.code, healed.reason) == (0, ""), told
    (only,) = healed.heals
    assert (list(only.lost), only.iteration, only.num_devices) == ([victim], 2, 1)
    recipe = json.loads((tmp_path / "job" / "recipe-1.json").read_text())
    assert recipe["iteration"] == 2
    assert recipe["checkpoint"].endswith("step-00000002")
    keys = [key for move in recipe["moves"] for key in move["keys"]]
    assert sorted(keys) == sorted(f"{what}/l{n}:" for n in range(6) for what in ("weights", "optimizer"))

    words = ["--model", "models_for_healing:model", "--checkpoint", tmp_path / "by hand", "--checkpoint-every", 2]
    first = [tmp_path / "plan.json", *words, "--steps", 2, "--losses", tmp_path / "first"]
    assert [code for code, _ in start_ranks([first] * 2)] == [0, 0]
    rest = [tmp_path / "job" / "plan-1.json", *words, "--steps", 6, "--resume", "--losses", tmp_path / "rest"]
    assert [code for code, _ in start_ranks([rest])] == [0]
    assert losses(tmp_path / "healed") == losses(tmp_path / "first") + losses(tmp_path / "rest")
    assert len(losses(tmp_path / "healed")) == 6


def start_by_hand(tmp_path: Path, *, iteration: int, model: str) -> list[object]:
    """The losses of a run that is stopped after so many iterations and resumed under the first new plan."""
    words = ["--model", f"models_for_healing:{model}", "--checkpoint", tmp_path / "by hand", "--checkpoint-every", 1]
    found: list[object] = []
    for name, end in (("plan.json", iteration), ("job/plan-1.json", 6)):
        told = tmp_path / f"losses-{end}"
        run = [tmp_path / name, *words, "--steps", end, "--resume", "--losses", told]
        size = len(parse_plan((tmp_path / name).read_bytes()).devices)
        assert [code for code, _ in start_ranks([run] * size)] == [0] * size
        found += losses(told)
    return found


@pytest.mark.parametrize("kind", ["sharded replicas", "no replica", *shortened([], whole=["replicas"])])
def test_live_copies_take_the_place_of_a_checkpoint(
    kind: str, tmp_path: Path, plan_text: str, monkeypatch: pytest.MonkeyPatch
):
    """Tests that where a replica of every layer is alive a job goes on from the last iteration without a checkpoint.

    So it does where replicas shard the optimizer's state: each keeps the whole.

    Tests that nothing is read from storage then, that losses are, to the bit, those of a run by hand, that a job
    without replicas goes on from its checkpoint, and that no copies are left behind.
    """
    has_replicas = kind != "no replica"
    if has_replicas:
        shard = "always" if kind == "sharded replicas" else "never"
        options = Options(
            uneven_replication=False, skip_edges=False, max_stages_per_device=1, max_replicas=2, shard_optimizer=shard
        )
        problem = make_chain("wwwwww", num_devices=4, num_microbatches=4, options=options)
        problem = replace(problem, profile=replace(problem.profile, microbatch_size=SAMPLES))
        plan_text = render_plan(make_plan(problem, limits=Limits(time_limit_s=60, max_rounds=2)))
        stages = parse_plan(plan_text.encode()).stages
        assert {(len(stage.replicas), stage.shard) for stage in stages} == {
            (2, "optimizer" if shard == "always" else "none")
        }
    monkeypatch.setenv("VICTIM", parse_plan(plan_text.encode()).devices[1])
    kept = ["--copy-every", "1", "--copies", str(tmp_path / "copies")]
    program = executor("dying_scheduled", tmp_path, *kept)
    program[program.index("--checkpoint-every") + 1] = "1000" if has_replicas else "2"
    healed, told = heal(tmp_path, plan_text, program)
    assert (healed.code, healed.reason) == (0, ""), told
    (only,) = healed.heals
    assert only.iteration == (3 if has_replicas else 2)
    assert only.source == ("live copies" if has_replicas else "checkpoint")
    assert bool(only.storage_bytes) != has_replicas
    assert bool(list((tmp_path / "job").glob("checkpoints/step-*"))) != has_replicas
    assert losses(tmp_path / "healed") == start_by_hand(tmp_path, iteration=only.iteration, model="scheduled")
    assert not (tmp_path / "copies").exists()


def test_hosts_send_each_other_what_they_have(tmp_path: Path, plan_text: str):
    """Tests that two hosts that change places, each with copies of its own layers only, send each other their layers.

    Tests that they go on from the last iteration to the losses of a run by hand, without any checkpoint, though the
    plan that ended was itself going on from these copies, and one host alone had written its own.
    """
    plan = parse_plan(plan_text.encode())
    one, other = plan.devices
    to = {one: other, other: one}
    stages = tuple(replace(each, replicas=((to[each.replicas[0][0]],),)) for each in plan.stages)
    swapped = replace(plan, stages=stages, schedule={to[name]: plan.schedule[name] for name in plan.schedule})
    for name, each in (("plan.json", plan), ("swapped.json", replace(swapped, evidence=None))):
        (tmp_path / name).write_text(render_plan(each))
    ended = "0" * 64
    recipe = {"format": "pipeline-recipe/1", "moves": [], "copies": {"plan_sha256": ended, "lost": []}}
    (tmp_path / "recipe.json").write_text(json.dumps(recipe))

    devices, places = make_layout(plan).devices, make_layout(swapped).devices
    folders, others = ([str(tmp_path / f"host of {name}") for name in names] for names in (devices, places))
    each = {"PIPEPLAN_COPIES": folders, "PIPEPLAN_DEVICE": devices, "VICTIM": [other] * 2}
    words = ["--model", "models_for_healing:dying_scheduled", "--steps", 6, "--copy-every", 1]
    codes = [code for code, _ in start_ranks([[tmp_path / "plan.json", *words]] * 2, **each)]
    assert all(codes)
    shutil.copytree(Path(folders[0], plan_sha256(plan)), Path(folders[0], ended))
    words[1] = "models_for_healing:scheduled"
    words += ["--recipe", tmp_path / "recipe.json", "--losses", tmp_path / "rest"]
    each = {"PIPEPLAN_COPIES": others}
    told = start_ranks([[tmp_path / "swapped.json", *words]] * 2, **each)
    assert [code for code, _ in told] == [0, 0], told
    check_as_by_hand(tmp_path, "swapped.json", model="scheduled")


def check_as_by_hand(tmp_path: Path, new: str, *, model: str) -> None:
    """The losses from iteration 3 on are those of a run that is saved there and loaded under the new plan."""
    model_words = ["--model", f"models_for_healing:{model}", "--steps", 3]
    first = [tmp_path / "plan.json", *model_words, "--save", tmp_path / "by hand"]
    last = [tmp_path / new, *model_words, "--load", tmp_path / "by hand"]
    for run in (first, [*last, "--losses", tmp_path / "expected"]):
        assert [code for code, _ in start_ranks([run] * 2)] == [0, 0]
    assert losses(tmp_path / "rest") == losses(tmp_path / "expected")
    assert len(losses(tmp_path / "rest")) == 3


def test_a_group_puts_its_layers_together_for_the_copy(tmp_path: Path):
    """Tests that what two devices held in pieces goes on whole on one each, from copies, as from a checkpoint."""
    group = make_random_plan("0+1", cut=(6,), num_microbatches=4)
    alone = make_random_plan("0 1", cut=(3, 3), num_microbatches=4)
    for name, each in (("plan.json", group), ("alone.json", alone)):
        (tmp_path / name).write_text(render_plan(each))
    copies = {"plan_sha256": plan_sha256(group), "lost": [group.devices[1]]}
    (tmp_path / "recipe.json").write_text(json.dumps({"format": "pipeline-recipe/1", "moves": [], "copies": copies}))
    words = ["--model", "models_for_healing:dying_wide", "--steps", 6, "--copy-every", 1, "--copies", tmp_path / "kept"]
    each = {"PIPEPLAN_DEVICE": make_layout(group).devices, "VICTIM": [group.devices[1]] * 2}
    codes = [code for code, _ in start_ranks([[tmp_path / "plan.json", *words]] * 2, **each)]
    assert all(codes)
    words[1] = "models_for_healing:wide"
    words += ["--recipe", tmp_path / "recipe.json", "--losses", tmp_path / "rest"]
    told = start_ranks([[tmp_path / "alone.json", *words]] * 2)
    assert [code for code, _ in told] == [0, 0], told
    check_as_by_hand(tmp_path, "alone.json", model="wide")


def test_a_program_that_fails_is_not_healed(tmp_path: Path, plan_text: str):
    """Tests that an error of the user's own ends the job at once, and that the message says whose it is."""
    healed, told = heal(tmp_path, plan_text, executor("failing", tmp_path))
    assert (healed.code, healed.heals, told) == (1, (), [])
    assert "that is the program's failure" in healed.reason
    assert healed.reason.startswith(("rank 0 (", "rank 1 ("))  # rank 0 may notice that rank 1 ends, and be the first


def test_a_recipe_for_another_plan_is_refused(tmp_path: Path, plan_text: str):
    """Tests that the executor reads the recipe: another plan's, or another step's, ends all before anything is run."""
    (tmp_path / "plan.json").write_text(plan_text)
    recipe = {"format": "pipeline-recipe/1", "plan_sha256": "0" * 64, "checkpoint": str(tmp_path), "moves": []}
    words = [tmp_path / "plan.json", "--model", "models_for_healing:model", "--recipe", tmp_path / "recipe.json"]
    for text, message in (
        (json.dumps(recipe), "the recipe is for the plan 0000000000000000…"),
        (json.dumps(recipe | {"format": "other/1"}), "its format is 'other/1', not 'pipeline-recipe/1'"),
        (json.dumps({"format": "pipeline-recipe/1", "moves": []}), "names no checkpoint; add --load FOLDER"),
        ("[", "is not a recipe"),
    ):
        (tmp_path / "recipe.json").write_text(text)
        for code, said in start_ranks([words] * 2):
            assert code, said
            assert message in said, said


def test_a_program_that_is_killed_again_and_again_is_given_up(tmp_path: Path, plan_text: str):
    """Tests that two losses without a newer checkpoint in between, or more than --heals allows, end the healing."""
    healed, told = heal(tmp_path, plan_text, [str(tmp_path / "pretend.py"), "always"])
    assert len(healed.heals) == 1, told
    assert healed.code
    assert "as before without a newer checkpoint in between" in healed.reason
    assert healed.heals[0].checkpoint is None
    again, _ = heal(tmp_path, plan_text, [str(tmp_path / "pretend.py"), "once"], most_heals=0)
    assert again.heals == ()
    assert "lost after 0 heals, the most that --heals allows" in again.reason


def test_torchrun_is_healed_by_the_command(
    tmp_path: Path, plan_text: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    """Tests that --heal starts torchrun anew without the killed rank, and says in JSON what happened.

    Tests that the service whose plan it is hears what was lost.
    """
    (tmp_path / "plan.json").write_text(plan_text)
    lost, left = parse_plan(plan_text.encode()).devices
    words = ["launch", "torchrun", "plan.json", "--here", "--heal", "--heal-time-limit", "1", "--json"]
    program = ["--folder", "job", "--processors", "--", str(tmp_path / "pretend.py"), "once"]
    with listening() as service:
        monkeypatch.setenv("PIPEPLAN_NOTIFY", f"http://127.0.0.1:{service.port}/v1/plans/{'0' * 32}")
        assert main([*words, *program]) == 0
    (notice,) = (json.loads(body) for _, body in service.heard)
    assert (notice["event"], list(notice["detail"]["lost"])) == ("device_lost", [lost])
    said = capfd.readouterr()
    told = json.loads(said.out)
    assert (told["exit_code"], told["reason"], len(told["heals"])) == (0, "", 1)
    assert list(told["heals"][0]["lost"]) == [lost]
    assert f"{left} went on by recipe-1.json" in said.err
    assert f"pipeplan: {lost} is lost: rank 0 was killed on" in said.err
    assert "pipeplan: goes on from iteration 2" in said.err


def test_what_cannot_be_healed_is_refused(tmp_path: Path, plan_text: str, capsys: pytest.CaptureFixture[str]):
    """Tests that a job that could not go on is refused before it begins."""
    (tmp_path / "plan.json").write_text(plan_text)
    (tmp_path / "kept" / "step-00000002").mkdir(parents=True)
    (tmp_path / "kept" / "step-00000002" / ".metadata").touch()
    for more, message in (
        (["-m", "planner.execute", "--model", "m:f"], "add --checkpoint-every N"),
        (["train.py", "--load", "old"], "use --resume instead"),
        (["train.py", "--checkpoint", "kept"], "belongs to an earlier run; add --resume"),
    ):
        assert main(["launch", "torchrun", "plan.json", "--here", "--heal", "--", *more]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(("code", "lost"), [(0, {}), (-9, {"d0": "rank 0 was killed on h0"})])
def test_a_process_may_end_while_its_record_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, lost: dict[str, str]
):
    """Tests that its last word counts, though the record still said that it runs when it was seen to be gone."""
    runs = RankRecord(rank=0, device="d0", host="h0", machine=socket.gethostname(), process=os.getpid(), started=1)
    write_record(tmp_path, runs)

    def ends_now(process: int) -> int | None:
        write_record(tmp_path, replace(runs, state="ended", code=code))
        return None

    monkeypatch.setattr(rank_record, "start_ticks", ends_now)
    assert read_end(tmp_path, is_over=False) == JobEnd(lost=lost, failure="")


def test_a_process_that_leaves_no_last_word_has_vanished(tmp_path: Path):
    """Tests that a device is lost whose process is gone with the parent that writes its record."""
    runs = RankRecord(rank=0, device="d0", host="h0", machine=socket.gethostname(), process=os.getpid(), started=1)
    write_record(tmp_path, runs)
    assert read_end(tmp_path, is_over=False).lost == {"d0": "rank 0 vanished from h0"}


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    if missing := missing_programs():
        pytest.fail(f"{', '.join(missing)} is missing: {INSTALL} (`make test` does)", pytrace=False)
    with slurm_cluster(tmp_path_factory.mktemp("slurm") / "cluster", num_nodes=2) as variables:
        yield variables


def when_all_run(folder: Path, act: Callable[[], None]) -> threading.Thread:
    """Acts once both processes of the first attempt run."""

    def wait() -> None:
        until = time.monotonic() + LIMIT_S
        while len(read_records(folder / "attempt-0")) < 2 and time.monotonic() < until:
            time.sleep(0.1)
        time.sleep(0.5)
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def wait_for(found: Callable[[], bool]) -> None:
    until = time.monotonic() + LIMIT_S
    while not found() and time.monotonic() < until:
        time.sleep(0.2)
    assert found()


def test_a_detached_job_is_healed_by_hand(
    slurm: dict[str, str],
    tmp_path: Path,
    plan_text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    """Tests that `job heal` ends a job nobody stayed with, and submits it anew by its recipe, without what is lost."""
    (tmp_path / "plan.json").write_text(plan_text)
    monkeypatch.setenv("SLURM_CONF", slurm["SLURM_CONF"])
    words = ["launch", "slurm", "plan.json", "--folder", "job", "--python", sys.executable, "--processors"]
    words += ["--host", "d0=n0", "--host", "d1=n1", "--", str(tmp_path / "pretend.py"), "sleeps"]
    assert main([*words, "--checkpoint", str(tmp_path / "kept")]) == 0
    assert main(["job", "heal", "job", "--lost", "d7"]) == 2
    assert "--lost d7: no device or host of the cluster" in capsys.readouterr().err
    assert main(["job", "heal", "job"]) == 2
    assert "no lost device is known" in capsys.readouterr().err
    wait_for(lambda: (tmp_path / "kept" / "step-00000002" / ".metadata").exists())
    assert main(["job", "heal", "job", "--lost", "n1", "--heal-time-limit", "1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["lost"], told["iteration"], told["num_devices"]) == (["d1"], 2, 1)
    wait_for(lambda: "d0 went on by recipe-1.json" in (tmp_path / "job" / "log").read_text())
    assert "#SBATCH --nodelist=n0\n" in (tmp_path / "job" / "job.sbatch").read_text()


@pytest.mark.parametrize("is_node", [False, True], ids=["killed rank", "dead node"])
def test_slurm_is_healed_by_the_command(
    is_node: bool,
    slurm: dict[str, str],
    tmp_path: Path,
    plan_text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    """Tests that a job in Slurm's queue is submitted anew without the node whose process, or which itself, is gone."""
    (tmp_path / "plan.json").write_text(plan_text)
    monkeypatch.setenv("SLURM_CONF", slurm["SLURM_CONF"])
    lost, left = parse_plan(plan_text.encode()).devices
    if is_node:
        lost, left = left, lost
    words = ["launch", "slurm", "plan.json", "--heal", "--heal-time-limit", "1", "--json", "--folder", "job"]
    words += ["--host", "d0=n0", "--host", "d1=n1", "--python", sys.executable, "--processors"]
    node = {"d0": "n0", "d1": "n1"}[lost]

    def take_down() -> None:
        if is_node:
            daemon = Path(slurm["SLURM_CONF"]).with_name(f"slurmd.{node}.pid")
            os.kill(int(daemon.read_text()), signal.SIGKILL)
            subprocess.run(["scontrol", "update", f"nodename={node}", "state=down", "reason=test"], check=True)

    thread = when_all_run(tmp_path / "job", take_down)
    code = main([*words, "--", str(tmp_path / "pretend.py"), "sleeps" if is_node else "once"])
    thread.join()
    said = capsys.readouterr()
    log = (tmp_path / "job" / "log").read_text()
    assert code == 0, said.err + log
    (only,) = json.loads(said.out)["heals"]
    assert list(only["lost"]) == [lost]
    assert ("is down" if is_node else "was killed") in only["lost"][lost]
    assert f"{left} went on by recipe-1.json" in log
    node = {"d0": "n0", "d1": "n1"}[left]
    assert f"#SBATCH --nodelist={node}\n" in (tmp_path / "job" / "job.sbatch").read_text()
