"""Rules: whole microbatches are dealt to pipelines, each to one."""

from collections import Counter

from planner.judge.case import Case, Finding, Findings, Rules, shown


def dealing_unasked(case: Case) -> Findings:
    """A plan deals microbatches only where the question lists them: other questions cut every microbatch evenly."""
    if case.plan.dealing and case.problem.microbatches is None:
        message = "The plan deals microbatches, but its question does not list them (`microbatches`)."
        yield Finding("the dealing", "none", f"{len(case.plan.dealing)} pipelines", message)


def dealing_once(case: Case) -> Findings:
    """A dealing gives every microbatch to one pipeline, and every pipeline a microbatch."""
    if not case.plan.dealing:
        return
    count = Counter(microbatch for assignment in case.plan.dealing for microbatch in assignment)
    every = range(case.problem.num_microbatches)
    wrong = [m for m in every if count[m] != 1] + sorted(m for m in count if m not in every)
    for microbatch in wrong:
        message = f"Microbatch {microbatch} is dealt {count[microbatch]} times, of {len(every)} microbatches."
        expected = "once" if microbatch in every else "never"
        yield Finding(f"microbatch {microbatch}", expected, f"{count[microbatch]} times", message)
    for pipeline, assignment in enumerate(case.plan.dealing):
        if not assignment:
            message = f"Pipeline {pipeline} is dealt no microbatch; leave it out."
            yield Finding(f"pipeline {pipeline}", "a microbatch", "none", message)


def dealing_replicas(case: Case) -> Findings:
    """Where microbatches are dealt, every stage has a replica in every pipeline, which takes them whole."""
    pipelines = len(case.plan.dealing)
    for number, stage in enumerate(case.plan.stages if pipelines else ()):
        if len(stage.replicas) != pipelines:
            message = f"Stage {number} has {len(stage.replicas)} replicas, but microbatches are dealt to {pipelines}."
            yield Finding(f"stage {number}", f"{pipelines} replicas", len(stage.replicas), message)
        if stage.samples or stage.input_grad_replicas or stage.weight_grad_replicas:
            message = f"Stage {number} cuts microbatches, or places I or W elsewhere, but they are dealt whole."
            yield Finding(f"stage {number}", "whole microbatches", "shares", message)


def dealing_devices(case: Case) -> Findings:
    """Where microbatches are dealt, a device works for one pipeline."""
    home: dict[str, set[int]] = {}
    for stage in case.plan.stages if case.plan.dealing else ():
        for pipeline, group in enumerate(stage.replicas):
            for device in group:
                home.setdefault(device, set()).add(pipeline)
    for device, pipelines in home.items():
        if len(pipelines) > 1:
            message = f"Device {shown(device, 80)} works for the pipelines {sorted(pipelines)}."
            yield Finding(f"device {shown(device, 80)}", "one pipeline", sorted(pipelines), message)


RULES: Rules = {
    dealing_unasked: "Remove `dealing`, or list the question's `microbatches`.",
    dealing_once: "Write every microbatch into one list of `dealing`, and no list without one.",
    dealing_replicas: "Give every stage a replica in each pipeline, without `samples` and split placement.",
    dealing_devices: "Put the device into one pipeline only.",
}
