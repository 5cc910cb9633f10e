"""Where a process continues from: live copies in memory, a checkpoint, or the beginning."""

from pathlib import Path
from typing import Any

from torch import distributed

from planner.execute.parallel.process_groups import gather
from planner.execute.record.recipe import RecipeOrder, require_fit
from planner.execute.record.resumption_record import Resumption
from planner.execute.run.execution import Execution
from planner.execute.state.checkpoint import CountingReader, find_newest, load_checkpoint
from planner.execute.state.live_copies import restore_copies


def resume(
    execution: Execution, *, order: RecipeOrder | None, folder: Path | None, copies: Path | None, is_named: bool
) -> Resumption:
    """Continue as a recipe orders, or from the newest checkpoint in a folder; a collective call.

    `copies`: folder of the live copies; `is_named`: that the folder has a checkpoint is not in doubt. Raises ValueError
    if the recipe is for another plan, or wants another iteration than its checkpoint has.
    """
    if order is not None:
        require_fit(order, execution.plan)
        if order.copies is not None and copies is not None:
            number = restore_copies(execution, copies, order=order.copies, since=order.iteration or 0)
            if number is not None:
                return Resumption(iteration=number, source="live copies", storage_bytes=0)
        folder, is_named = order.checkpoint or folder, is_named or order.checkpoint is not None
    found: list[Any] = [None if folder is None else find_newest(folder)]  # as rank 0 sees it
    distributed.broadcast_object_list(found)
    place = found[0] or (folder if is_named else None)
    if place is None:
        return Resumption(iteration=0, source="beginning", storage_bytes=0)
    reader = CountingReader(place)
    number = load_checkpoint(execution, place, reader=reader)
    if order is not None and order.iteration not in (None, number):
        raise ValueError(
            f"{place}: was written after {number} iterations, but the recipe needs {order.iteration}; "
            "give the checkpoint it was made for"
        )
    return Resumption(iteration=number, source="checkpoint", storage_bytes=sum(gather(reader.num_bytes)))
