"""Stages of whose outputs nobody made use in an iteration: their weights end without gradients, as in one process.

Messages have one shape, so a stage that leaves an input alone sends zeros back, and what came before it runs a backward
of zeros. Each process knows at once which inputs it left alone; that one did is told beside whether all is finite.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from planner.execute.parallel.process_groups import gather
from planner.execute.parallel.update import Update
from planner.execute.run.local_model import LocalModel
from planner.execute.table.wiring import StageEdge


def forget_unused_stages(model: LocalModel, update: Update) -> None:
    """Drop the gradients of stages that nobody used; a collective call. Of a tie all stages have to be such."""
    used = defaultdict[int, set[str]](set)
    for told in gather({stage.stage_index: stage.used_values for stage in model.stages}):
        for number, names in told.items():
            used[number] |= names
    unused = find_unused_stages(used, model.preparation.edges, num_stages=model.layout.num_stages)
    stage_of = {name: number for number, stage in enumerate(model.plan.stages) for name in stage.layers}
    copies = {name: names for names in model.training.tied for name in names}
    for name, parameter in model.named():
        if all(stage_of[each.partition(":")[0]] in unused for each in copies.get(name, (name,))):
            update.stepped_for(parameter).grad = None


def find_unused_stages(
    used: Mapping[int, Collection[str]], edges: Sequence[StageEdge], *, num_stages: int
) -> frozenset[int]:
    """Those of which no value is among the `used` ones of a stage that is used itself; the last one always is."""
    found = set[int]()
    for number in reversed(range(num_stages - 1)):
        takers = [edge for edge in edges if edge.producer == number and edge.consumer not in found]
        if not any(name in used[edge.consumer] for edge in takers for name in edge.values):
            found.add(number)
    return frozenset(found)
