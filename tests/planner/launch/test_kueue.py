"""Sets of pods that Kueue places, by how the plan's hosts lie in NVLink domains."""

import json
import subprocess
from dataclasses import replace
from typing import Any

import pytest

from planner.launch.cluster_facts import ClusterFacts
from planner.launch.kubernetes import PodNeeds, render_kubernetes
from planner.launch.kueue import KueueQueue, split_pod_sets
from planner.launch.launch_job import LaunchJob
from planner.launch.rank_mapping import place_ranks
from tests.planner.execute.orders import make_random_plan
from tests.planner.launch.test_kubernetes import require_known
from tests.planner.launch.test_torchrun import make_job

KUEUE = "kueue.x-k8s.io/podset-"
CLIQUE = "nvidia.com/gpu.clique"


def job_over(*domains: str, per_domain: int = 3, free: str = "", two_on: str = "") -> LaunchJob:
    """A process on each of these hosts, in this order: letters of one string lie in a domain of `per_domain` hosts."""
    names = [*"".join(domains), *free, *two_on]
    seats = {f"d{number}": (name, names[:number].count(name)) for number, name in enumerate(names)}
    plan = make_random_plan(" ".join(map(str, range(len(names)))), num_microbatches=1)
    rest = (f"rest{number}" for number in range(99))
    whole = tuple(frozenset([*hosts, *(next(rest) for _ in range(per_domain - len(hosts)))]) for hosts in domains)
    return replace(make_job(), placement=place_ranks(plan, seats), cluster=ClusterFacts(domains=whole))


def job_set(job: LaunchJob, *levels: str) -> Any:
    queue = KueueQueue(name="training", levels=levels or (CLIQUE,))
    needs = PodNeeds(image="trainer:1", with_gpus=True, queue=queue)
    done = render_kubernetes(job, kind="jobset", needs=needs, plan_text="{}", folder="/job")
    return json.loads(done.files["job.json"])["items"][1]


def pods_of(found: Any) -> list[Any]:
    return [each["template"]["spec"]["template"] for each in found["spec"]["replicatedJobs"]]


@pytest.mark.parametrize(
    ("domains", "free", "sets"),
    [
        (("abc",), "", [("abc", 3)]),
        (("ab", "cd"), "", [("abcd", 2)]),
        (("abc", "d"), "", [("abc", 3), ("d", 1)]),
        (("ab", "c", "de"), "", [("abde", 2), ("c", 1)]),
        ((), "xyz", [("xyz", 0)]),
        (("ab",), "x", [("ab", 2), ("x", 0)]),
    ],
)
def test_hosts_of_domains_are_placed_together(domains: tuple[str, ...], free: str, sets: list[tuple[str, int]]):
    """Tests that domains with equally many of the plan's hosts make a set, which begins with rank 0's."""
    found = split_pod_sets(job_over(*domains, free=free))
    assert [("".join(each.hosts), each.hosts_per_domain) for each in found] == sets


@pytest.mark.parametrize(
    ("racks", "per_rack", "used", "sizes"),
    [
        (1, 18, (18,), [(18, 18)]),
        (2, 18, (18, 18), [(36, 18)]),
        (2, 9, (9, 9), [(18, 9)]),
        (4, 2, (2, 2, 2, 2), [(8, 2)]),
        (3, 18, (18, 18, 4), [(36, 18), (4, 4)]),
    ],
)
def test_racks_of_many_sizes(racks: int, per_rack: int, used: tuple[int, ...], sizes: list[tuple[int, int]]):
    """Tests that NVL72 racks of 18 hosts, racks of 9, boards of 2, and a part of a rack make sets of whole domains."""
    letters = iter("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    domains = ["".join(next(letters) for _ in range(count)) for count in used]
    assert len(domains) == racks
    found = split_pod_sets(job_over(*domains, per_domain=per_rack))
    assert [(len(each.hosts), each.hosts_per_domain) for each in found] == sizes


def test_kueue_is_told_the_levels(monkeypatch: pytest.MonkeyPatch, record_property: Any):
    """Tests that a set in one domain requires it, that one in several has slices, and what other hosts ask for."""
    found = job_set(job_over("ab", "c", "de", free="x"))
    assert found["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "training"}
    assert [each["metadata"]["annotations"] for each in pods_of(found)] == [
        {f"{KUEUE}slice-required-topology": CLIQUE, f"{KUEUE}slice-size": "2"},
        {f"{KUEUE}required-topology": CLIQUE},
        {f"{KUEUE}unconstrained-topology": "true"},
    ]
    counts = [each["template"]["spec"] for each in found["spec"]["replicatedJobs"]]
    assert [(each["parallelism"], each["completions"], each["completionMode"]) for each in counts] == [
        (4, 4, "Indexed"),
        (1, 1, "Indexed"),
        (1, 1, "Indexed"),
    ]
    assert not any("nodeSelector" in each["spec"] for each in pods_of(found))
    require_known(found, "JobsetV1alpha2JobSet", monkeypatch, record_property)


def test_slices_and_other_hosts_lie_near_each_other():
    """Tests that the level above domains is preferred for what lies in several, and not where one is required."""
    found = job_set(job_over("ab", "c", "de", free="x"), "example.com/zone", "example.com/block", "example.com/rack")
    near = {f"{KUEUE}preferred-topology": "example.com/block"}
    assert [each["metadata"]["annotations"] for each in pods_of(found)] == [
        near | {f"{KUEUE}slice-required-topology": "example.com/rack", f"{KUEUE}slice-size": "2"},
        {f"{KUEUE}required-topology": "example.com/rack"},
        near,
    ]


def test_a_pod_finds_its_host_by_its_index():
    """Tests that the container's command, run by a shell, starts the agent of its host with its own node rank."""
    job = job_over("ab", "c", "de")
    job = replace(job, host_names={"d": "node.d"}, python="env")
    started = {}
    for pods, indices in zip(pods_of(job_set(job)), (4, 1), strict=True):
        shell, options, script = pods["spec"]["containers"][0]["command"]
        for index in range(indices):
            script = script.replace("$$", "$").replace("exec env", 'exec printf "%s " "$PLAN_NODE"')
            done = subprocess.run(
                [shell, options, script], env={"JOB_COMPLETION_INDEX": str(index)}, capture_output=True, text=True
            )
            host, arguments = done.stdout.split(" -m planner.execute.run.agent ")
            started[host] = arguments.split()[:5]
    common = ["--nnodes=5", "--nproc-per-node=1", "--master-addr=job-host0-0-0.job", "--master-port=29500"]
    order = ["a", "b", "node.d", "e", "c"]
    assert started == {host: [f"--node-rank={rank}", *common] for rank, host in enumerate(order)}


def test_what_kueue_cannot_place_is_refused():
    """Tests that unlike hosts of a domain, too many sets, other controllers and odd names are refused with remedies."""
    job = job_over("ab", two_on="b")
    with pytest.raises(
        ValueError, match="hosts 'a' and 'b' of one NVLink domain need 1 and 2 accelerators for 1 and 2"
    ):
        split_pod_sets(job)
    needs = PodNeeds(image="i", queue=KueueQueue(name="q"))
    with pytest.raises(ValueError, match="--kueue: pods of a trainjob are placed on"):
        render_kubernetes(job, kind="trainjob", needs=needs, plan_text="{}", folder="/job")
    with pytest.raises(ValueError, match="queue 'a b' is no name of a LocalQueue"):
        KueueQueue(name="a b")
    with pytest.raises(ValueError, match="level '-' is no label of nodes"):
        KueueQueue(name="a", levels=("-",))
