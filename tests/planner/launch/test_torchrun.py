"""Commands for torchrun as text."""

import shlex

import pytest

from planner.launch.launch_job import Command, LaunchJob, make_job_name
from planner.launch.rank_mapping import place_ranks
from planner.launch.torchrun import over_ssh, render_torchrun
from tests.planner.execute.orders import make_random_plan

HOSTS = {"d0": ("a", 0), "d1": ("b", 0), "d2": ("b", 1), "d3": ("b", 2)}
HOSTILE = 'it\'s; rm -rf $HOME `id` "x" \\ *'
"""A name that a shell would take for something else."""


def make_job(placement: str = "2 0 3", **changes: object) -> LaunchJob:
    """Three stages: ranks 0 and 2 on accelerators 1 and 2 of b, rank 1 on accelerator 0 of a."""
    plan = make_random_plan(placement, num_microbatches=1)
    given = {"name": "job", "program": ("train.py", "--steps", "3"), "plan_at": "/shared/plan.json"}
    return LaunchJob(placement=place_ranks(plan, HOSTS), plan_sha256="f00d", **(given | changes))  # type: ignore[arg-type]


def test_one_agent_per_host():
    """Tests that hosts follow their first rank, with as many processes each as the plan uses devices there."""
    assert render_torchrun(make_job()).render(folder="/job") == (
        "# on b\n"
        "$ PLAN_NODE=b python3 -m planner.execute.run.agent --nnodes=2 --node-rank=0 --nproc-per-node=2 "
        "--master-addr=b --master-port=29500 -m planner.execute.enter /shared/plan.json --sha256 f00d "
        "-- train.py --steps 3\n"
        "\n"
        "# on a\n"
        "$ PLAN_NODE=a python3 -m planner.execute.run.agent --nnodes=2 --node-rank=1 --nproc-per-node=1 "
        "--master-addr=b --master-port=29500 -m planner.execute.enter /shared/plan.json --sha256 f00d "
        "-- train.py --steps 3\n"
    )


def test_a_single_host_needs_no_address():
    """Tests that one agent finds a port by itself, and that with is_here the plan's hosts do not matter."""
    assert render_torchrun(make_job("2 3")).render(folder="/job") == (
        "$ PLAN_NODE=b python3 -m planner.execute.run.agent --standalone --nproc-per-node=2 "
        "-m planner.execute.enter /shared/plan.json --sha256 f00d "
        "-- train.py --steps 3\n"
    )
    assert render_torchrun(make_job(), is_here=True).render(folder="/job") == (
        "$ python3 -m planner.execute.run.agent --standalone --nproc-per-node=3 "
        "-m planner.execute.enter /shared/plan.json --sha256 f00d --here -- train.py --steps 3\n"
    )


def test_hosts_may_be_called_otherwise():
    """Tests that real names stand where the network reads them, and are passed on to every process."""
    job = make_job(host_names={"b": "node17"}, on_processors=True, cluster_at="/shared/cluster.json")
    first, second = render_torchrun(job, master="10.0.0.1", port=4000).commands
    assert (first.host, second.host) == ("node17", "a")
    assert first.environment == {"PLAN_NODE": "node17"}
    assert "--master-addr=10.0.0.1 --master-port=4000" in first.render()
    assert "--cluster /shared/cluster.json --host b=node17 --processors -- train.py" in second.render()


def test_hostile_words_stay_single_words():
    """Tests that a shell gives back every word as it was given, on this host and behind ssh."""
    job = make_job(program=(HOSTILE, "\n", ""), plan_at=HOSTILE, python=HOSTILE)
    command = render_torchrun(job, is_here=True).commands[0]
    assert tuple(shlex.split(command.render())) == command.arguments
    far = over_ssh(Command(arguments=command.arguments, environment={"PLAN_NODE": HOSTILE}, host="b"), folder=HOSTILE)
    assert far.arguments[:5] == ("ssh", "-o", "BatchMode=yes", "--", "b")
    assert shlex.split(far.arguments[5]) == ["cd", HOSTILE, "&&", f"PLAN_NODE={HOSTILE}", *command.arguments]


@pytest.mark.parametrize("host", ["-oProxyCommand=id", "a b", "a;b", ""])
def test_what_cannot_be_a_machine_is_refused(host: str):
    """Tests that a host whose name ssh or torchrun would take for something else is refused with the remedy."""
    with pytest.raises(ValueError, match="cannot be a machine's name; name it with --host"):
        render_torchrun(make_job(host_names={"b": host}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"program": ()}, "what to run is missing"),
        ({"program": ("-m",)}, "what to run is missing"),
        ({"name": "A job"}, "give at most 52 lower-case letters"),
        ({"name": "x" * 53}, "give at most 52 lower-case letters"),
    ],
)
def test_half_a_job_is_refused(changes: dict[str, object], message: str):
    """Tests that a job needs a program, and a name that every launcher takes."""
    with pytest.raises(ValueError, match=message):
        make_job(**changes)


@pytest.mark.parametrize("text", ["Plan #3 of Jürgen", "---", "", "x" * 300, "a" * 51 + "-b"])
def test_job_names_are_made_of_anything(text: str):
    """Tests that whatever a file is called, its job gets a name that is allowed."""
    assert make_job(name=make_job_name(text)).name


@pytest.mark.parametrize("program", ["python", "torchrun", "./run.sh", "train"])
def test_a_program_that_is_not_python_is_refused(program: str):
    """Tests that an interpreter, a launcher or a shell script is refused before it fails on every host."""
    with pytest.raises(ValueError, match="no Python file"):
        make_job(program=(program, "train.py"))


def test_two_hosts_cannot_be_one_machine():
    """Tests that two hosts of the plan under one real name are refused."""
    with pytest.raises(ValueError, match="two hosts of the plan are 'x'"):
        make_job(host_names={"a": "x", "b": "x"})
