"""Scripts for Slurm as text."""

import re
import shlex
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from planner.launch.cluster_facts import ClusterFacts
from planner.launch.launch_job import LaunchJob
from planner.launch.rank_mapping import place_ranks
from planner.launch.slurm import describe_slurm_job, find_job_id, render_slurm
from tests.planner.execute.orders import make_random_plan
from tests.planner.launch.test_torchrun import HOSTILE, make_job

SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=job
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --nodes=1
#SBATCH --nodelist=b
#SBATCH --ntasks=2
#SBATCH --ntasks-per-node=2
#SBATCH hetjob
#SBATCH --nodes=1
#SBATCH --nodelist=a
#SBATCH --ntasks=1
#SBATCH --ntasks-per-node=1
set -eu
export MASTER_ADDR=b
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
rm -f /job/exit
: > /job/failed
code=0
srun --het-group=0-1 --export=ALL --kill-on-bad-exit=1 -- /bin/sh /job/task.sh python3 -m planner.execute.enter \
/shared/plan.json --sha256 f00d -- train.py --steps 3 || code=$?
if [ "$code" != 0 ] && read -r first < /job/failed; then code=$first; fi
echo "$code" > /job/exit
exit "$code"
"""


def test_every_node_has_the_tasks_of_its_devices():
    """Tests that all is there: the script, a component for each number of tasks, and the command that submits them."""
    submission = render_slurm(make_job(), folder="/job", options=["--time=10"])
    assert submission.files["job.sbatch"] == SCRIPT
    (command,) = submission.commands
    assert command.render() == "sbatch --parsable --output=/job/log --time=10 /job/job.sbatch"


def job_on(*places: tuple[str, int], cluster: ClusterFacts | None = None) -> LaunchJob:
    """A stage on every place: a host, and the index of a device there."""
    count = len(places)
    plan = make_random_plan(" ".join(map(str, range(count))), num_microbatches=1, cut=(1,) * count)
    hosts = {f"d{number}": place for number, place in enumerate(places)}
    return replace(make_job(), placement=place_ranks(plan, hosts), cluster=cluster or ClusterFacts())


def components(job: LaunchJob, *, with_gpus: bool = True) -> list[list[str]]:
    """What is asked for every component, and the options of srun after them."""
    text = render_slurm(job, folder="/job", with_gpus=with_gpus).files["job.sbatch"]
    lines = [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")]
    found: list[list[str]] = [[]]
    for line in lines[3:]:
        found = [*found, []] if line == "hetjob" else [*found[:-1], [*found[-1], line.removeprefix("--")]]
    return found


def test_nodes_that_are_alike_are_one_component():
    """Tests that a plan with as many tasks and accelerators on every node is a plain job."""
    job = job_on(("a", 0), ("a", 1), ("b", 0), ("b", 1))
    assert components(job) == [["nodes=2", "nodelist=a,b", "ntasks=4", "ntasks-per-node=2", "gpus-per-node=2"]]
    script = render_slurm(job, folder="/job", with_gpus=True).files["job.sbatch"]
    assert "\nsrun --export=ALL --kill-on-bad-exit=1 --gpu-bind=none -- /bin/sh /job/task.sh python3" in script
    assert not any(word in script for word in ("arbitrary", "hetjob", "het-group", "HOSTFILE"))


def test_a_type_that_is_no_word_of_slurm_is_refused():
    """Tests that a mixed node whose types have blanks is refused by type, with what to do."""
    job = job_on(("a", 0), cluster=ClusterFacts(types={"a": ("NVIDIA H100", "NVIDIA A100")}))
    with pytest.raises(ValueError, match="type 'NVIDIA H100' of its devices cannot be a type of Slurm's GRES; call it"):
        render_slurm(job, folder="/job", with_gpus=True)


def task(folder: Path, program: str) -> list[str]:
    """What srun starts."""
    (folder / "failed").touch()
    (folder / "task.sh").write_text(render_slurm(make_job(), folder=str(folder)).files["task.sh"])
    return ["/bin/sh", str(folder / "task.sh"), "/bin/sh", "-c", program]


@pytest.mark.parametrize(
    ("program", "code"),
    [("exit 0", 0), ("exit 3", 3), ("kill -KILL $$", 137), ("no-such-program-here", 127)],
)
def test_a_task_that_fails_writes_its_code(tmp_path: Path, program: str, code: int):
    """Tests that a task ends as its program does, and leaves its code where the script looks, if it is not 0."""
    words = task(tmp_path, f"{program} 2> {tmp_path}/errors")
    assert subprocess.run(words, timeout=20, check=False).returncode == code
    assert (tmp_path / "failed").read_text() == (f"{code}\n" if code else "")


def catches(process: int, number: signal.Signals) -> bool:
    """Whether it has a handler of its own for the signal."""
    (caught,) = re.findall(r"^SigCgt:\s+(\w+)$", Path(f"/proc/{process}/status").read_text(), flags=re.MULTILINE)
    return bool(int(caught, 16) >> (number - 1) & 1)


def test_a_task_hands_signals_on(tmp_path: Path):
    """Tests that a program that is asked to end may take its time, and that its own code counts."""
    program = "trap 'echo asked; exit 7' TERM; echo ready; while :; do sleep 0.05; done"
    with subprocess.Popen(task(tmp_path, program), stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == "ready\n"
        while not catches(started.pid, signal.SIGTERM):  # the shell, which has started the program before
            time.sleep(0.01)
        started.send_signal(signal.SIGTERM)
        assert started.communicate(timeout=20)[0] == "asked\n"
    assert started.returncode == 7
    assert (tmp_path / "failed").read_text() == "7\n"


def test_the_first_code_is_that_of_the_job(tmp_path: Path):
    """Tests that the script ends with the first code that was left, with srun's own where none was."""
    script = render_slurm(make_job(), folder=str(tmp_path)).files["job.sbatch"]
    (tmp_path / "job.sbatch").write_text(script)
    for left, code in (("3\n143\n", 3), ("", 143)):
        (tmp_path / "srun").write_text(f"#!/bin/sh\nprintf '{left}' > {tmp_path}/failed\nexit 143\n")
        (tmp_path / "srun").chmod(0o755)
        environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "17"}
        done = subprocess.run(["/bin/bash", str(tmp_path / "job.sbatch")], env=environment, check=False)
        assert done.returncode == code
        assert (tmp_path / "exit").read_text() == f"{code}\n"


def test_hostile_words_stay_single_words():
    """Tests that the shell gives back every word as it was given, and that none ends up among sbatch's options."""
    folder = f"/{HOSTILE}/100%j"
    submission = render_slurm(make_job(program=(HOSTILE,)), folder=folder, master=HOSTILE)
    lines = submission.files["job.sbatch"].splitlines()
    (run,) = (shlex.split(line) for line in lines if line.startswith("srun "))
    assert run[run.index(f"{folder}/task.sh") + 1] == "python3"
    assert run[run.index(HOSTILE) :] == [HOSTILE, "||", "code=$?"]
    assert f"export MASTER_ADDR={shlex.quote(HOSTILE)}" in lines
    assert f": > {shlex.quote(folder + '/failed')}" in lines
    assert all(line.count(" ") == 1 for line in lines if line.startswith("#SBATCH"))
    (output,) = (word for word in submission.commands[0].arguments if word.startswith("--output="))
    assert "%%j" in output


@pytest.mark.parametrize("host", ["n[0-3]", "a,b", "a*2", "x y"])
def test_what_slurm_would_expand_is_refused(host: str):
    """Tests that names that a file of hosts would read as several nodes are refused."""
    with pytest.raises(ValueError, match="cannot be the name of a Slurm node"):
        render_slurm(make_job(host_names={"b": host}), folder="/job")


def test_the_answer_of_sbatch_is_read():
    """Tests that the job's number is found, that a cluster's name stays with it, and that anything else is refused."""
    assert [find_job_id(answer) for answer in ("17\n", "17;far\n")] == ["17", "17;far"]
    with pytest.raises(ValueError, match="which is not a job number"):
        find_job_id("Submitted batch job 17")


def test_the_answer_of_squeue_is_read():
    """Tests that states of jobs that go on are passed on, that others have ended, and that none is gone."""
    said = {"RUNNING n0": "RUNNING n0", "COMPLETING n0": "COMPLETING n0", "": "gone: Slurm no longer lists it"}
    said |= {"CANCELLED None": "ended: CANCELLED None", "NODE_FAIL n1": "ended: NODE_FAIL n1"}
    said |= {"COMPLETED None\nRUNNING n1": "RUNNING n1", "FAILED a\nCOMPLETED b": "ended: FAILED a"}
    said |= {"COMPLETED None\nCOMPLETED None": "ended: COMPLETED None"}
    said |= {"CLUSTER: far\nRUNNING n0": "RUNNING n0", "CLUSTER: far": "gone: Slurm no longer lists it"}
    said |= {"REQUEUE_HOLD None": "REQUEUE_HOLD None", "SIGNALING n0": "SIGNALING n0", "NEWER n0": "NEWER n0"}
    assert {answer: describe_slurm_job(f"{answer}\n") for answer in said} == said


@pytest.mark.parametrize(
    "option",
    [
        "--nodes=9",
        "-N9",
        "--array=1-4",
        "--wrap=ls",
        "--output=mine",
        "--ntasks-per-node=2",
        "--nodelist",
        "time=2:00:00",
        "--nodel=a",
        "--arr=1-3",
        "--outp=x",
        "--tasks-per-node=3",
        "--nodefile=hosts",
        "-Fhosts",
        "-HN9",
    ],
)
def test_options_that_would_undo_the_plan_are_refused(option: str):
    """Tests that nothing of sbatch's overrides where the plan puts its processes, nor is taken for the script."""
    with pytest.raises(ValueError, match=f"--sbatch={option}: the plan decides it, or it is no option"):
        render_slurm(make_job(), folder="/job", options=["--ntasks-per-core=1", "-JNight", "-W", option])


@pytest.mark.parametrize("option", ["--time=4hours", "--time=4h", "--time=", "--time-min=1:2:3:4", "-t4h", "--time=1-"])
def test_times_that_sbatch_refuses_are_refused(option: str):
    """Tests that a span of time in another form is not left for sbatch to find."""
    with pytest.raises(ValueError, match=rf"^--sbatch={option}: sbatch takes minutes, .*; write --time=4:00:00"):
        render_slurm(make_job(), folder="/j", options=[option])


@pytest.mark.parametrize("span", ["90", "90:30", "4:00:00", "1-12", "1-12:30", "1-12:30:15", "0", "UNLIMITED"])
def test_times_that_sbatch_takes_pass(span: str):
    """Tests that every form of sbatch's is handed on."""
    for option in (f"--time={span}", f"--time-min={span}", f"-t{span}", "--test-only", "--tmp=9"):
        (command,) = render_slurm(make_job(), folder="/j", options=[option]).commands
        assert option in command.arguments


@pytest.mark.parametrize("option", ["--gpus-per-node=2", "--gpus=4", "--gres=gpu:a100:2", "-G4"])
def test_accelerators_are_asked_for_once(option: str):
    """Tests that what --gpus asks for is not overridden behind it."""
    render_slurm(make_job(), folder="/j", options=[option, "--gpu-bind=none"])
    with pytest.raises(ValueError, match=rf"^--sbatch={option}: --gpus asks for what the plan needs"):
        render_slurm(make_job(), folder="/j", options=[option], with_gpus=True)
