"""Questions about some of the devices alone."""

from collections.abc import Iterable
from dataclasses import replace

from planner.batch_problem import Question, batch_problem_of
from planner.problem import Options, Problem
from profiles.cluster import Cluster


def problem_on(problem: Problem, devices: Iterable[str]) -> Problem:
    """The question of the least makespan with these devices alone.

    The others pass traffic on as switches do, so that every route stays as it is: a plan that leaves them idle is
    played alike in both. Sizes of microbatches are those measured on all devices, not on these.
    """
    batch, question = problem.batch, batch_problem_of(problem)
    if batch is not None and question is not None:
        batch = replace(batch, microbatch_sizes=question.sizes)
    return replace(
        problem, cluster=_cluster_on(problem.cluster, devices), options=_for_time(problem.options), batch=batch
    )


def question_on(question: Question, devices: Iterable[str]) -> Question:
    """The same where the size of microbatches may be open."""
    if isinstance(question, Problem):
        return problem_on(question, devices)
    return replace(
        question,
        cluster=_cluster_on(question.cluster, devices),
        options=_for_time(question.options),
        microbatch_sizes=question.sizes,
    )


def _cluster_on(cluster: Cluster, devices: Iterable[str]) -> Cluster:
    """With these devices; the others are switches."""
    chosen = set(devices)
    kept = tuple(device for device in cluster.devices if device.name in chosen)
    hosts = {device.host for device in kept}
    ends = [device.name for device in cluster.devices if device.name not in chosen]
    ends += [host for host in dict.fromkeys(device.host for device in cluster.devices) if host and host not in hosts]
    known = {*cluster.switches, *chosen, *hosts}
    others = tuple(name for name in dict.fromkeys(ends) if name not in known)
    return replace(cluster, devices=kept, switches=(*cluster.switches, *others))


def _for_time(options: Options) -> Options:
    return replace(options, objective="makespan", deadline_ns=None)
