"""Rules: every layer is in one stage, and the stages are in order."""

from dataclasses import asdict
from itertools import pairwise

from planner.judge.case import Case, Finding, Findings, Rules, shown
from planner.judge.recomputation import recompute_kinds
from profiles.degrees import Degrees


def layer_unknown(case: Case) -> Findings:
    """Every layer of a stage is a layer of the profile."""
    for name, number in case.reading.stage_of.items():
        if name not in case.reading.layers:
            message = f"Stage {number} names the layer {shown(name, 80)!r}, which the profile does not have."
            yield Finding(f"stage {number}", "layers of the profile", name, message)


def layer_repeated(case: Case) -> Findings:
    """No layer is listed twice."""
    seen: dict[str, int] = {}
    for number, stage in enumerate(case.plan.stages):
        for name in stage.layers:
            if name in seen:
                message = f"Layer {shown(name, 80)!r} is in stage {seen[name]} and again in stage {number}."
                yield Finding(f"layer {name}", f"stage {seen[name]} only", f"also stage {number}", message)
            seen.setdefault(name, number)


def layer_missing(case: Case) -> Findings:
    """Every layer of the profile is in a stage."""
    for layer in case.problem.profile.layers:
        if layer.name not in case.reading.stage_of:
            message = f"Layer {layer.name!r} is in no stage."
            yield Finding(f"layer {layer.name}", "one stage", "none", message)


def stage_empty(case: Case) -> Findings:
    """Every stage has a layer."""
    for number, stage in enumerate(case.plan.stages):
        if not stage.layers:
            yield Finding(f"stage {number}", "at least one layer", "none", f"Stage {number} has no layers.")


def stage_order(case: Case) -> Findings:
    """No edge leads from a later stage to an earlier one: then stages are convex and their graph has no cycle."""
    for edge in case.problem.profile.edges:
        a, b = case.reading.stage_of.get(edge.producer, 0), case.reading.stage_of.get(edge.consumer, 0)
        if edge.producer in case.reading.stage_of and edge.consumer in case.reading.stage_of and a > b:
            message = (
                f"Layer {edge.producer!r} in stage {a} feeds layer {edge.consumer!r} in the earlier stage {b}; "
                "stage numbers must follow the dependencies."
            )
            yield Finding(f"stage {a}", f"a number of at most {b}", a, message)


def layer_order(case: Case) -> Findings:
    """Inside a stage, a layer is listed after the layers that feed it."""
    stage_of = case.reading.stage_of
    position = {name: index for stage in case.plan.stages for index, name in enumerate(stage.layers)}
    for edge in case.problem.profile.edges:
        a, b = edge.producer, edge.consumer
        inside = a in stage_of and b in stage_of and stage_of[a] == stage_of[b]
        if inside and position[a] > position[b]:
            message = f"Stage {stage_of[a]} lists layer {b!r} before layer {a!r}, which feeds it."
            yield Finding(f"stage {stage_of[a]}", f"{a}, {b}", f"{b}, {a}", message)


def recompute_unknown(case: Case) -> Findings:
    """A stage that says which layers recompute names layers of its own, and kinds that they state."""
    for number, stage in enumerate(case.plan.stages):
        for name, kind in stage.recompute if isinstance(stage.recompute, tuple) else ():
            layer = case.reading.layers.get(name)
            known = [] if layer is None or name not in stage.layers else recompute_kinds(layer)
            if kind not in known:
                message = f"Stage {number} recomputes {shown(name, 80)!r} by {shown(kind, 80)!r}, which is not there."
                yield Finding(f"stage {number}", known or list(stage.layers), f"{name}: {kind}", message)


def recompute_microbatches_wrong(case: Case) -> Findings:
    """A stage that lists the microbatches that recompute does recompute; they ascend, and the problem has them."""
    for number, stage in enumerate(case.plan.stages):
        listed, count = stage.recompute_microbatches, case.problem.num_microbatches
        ascends = all(a < b for a, b in pairwise(listed)) and all(0 <= m < count for m in listed)
        if listed and not (stage.recompute and ascends):
            message = f"Stage {number} lists {shown(list(listed), 80)} as those that recompute, which cannot be."
            yield Finding(f"stage {number}", f"some of 0 to {count - 1}, ascending", list(listed), message)


def degrees_wrong(case: Case) -> Findings:
    """Degrees that a stage names are those of the profile at its width: they multiply to it, and experts divide it."""
    entries = {each.tensor * each.context * each.data: each for each in case.problem.profile.degrees}
    for number, stage in enumerate(case.plan.stages):
        width = max(map(len, stage.replicas), default=1)
        held = entries.get(width, Degrees(tensor=width))
        wanted = {name: value for name, value in asdict(held).items() if value > 1}
        if stage.degrees and dict(stage.degrees) != wanted:
            message = f"Stage {number} is on groups of {width}, whose degrees are {held}, but names others."
            yield Finding(f"stage {number}", wanted, dict(stage.degrees), message)


RULES: Rules = {
    layer_unknown: "Correct the layer's name, or give the profile that has it.",
    layer_repeated: "Remove the layer from one of the stages.",
    layer_missing: "Put the layer into a stage.",
    stage_empty: "Put a layer into the stage, or remove it.",
    stage_order: "Number the stages along the edges, or move one of the two layers.",
    layer_order: "List the layers of the stage along the edges.",
    recompute_unknown: "Name layers of the stage, and kinds of their `recompute_kinds`.",
    recompute_microbatches_wrong: "List microbatches of the problem in order, for a stage that recomputes.",
    degrees_wrong: "State degrees that the profile has at this width, or remove `degrees`.",
}
