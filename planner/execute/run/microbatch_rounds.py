"""Iterations whose microbatches are given one by one: all processes learn their shapes, and who takes which.

A process that receives a tensor has to know its shape. So once per iteration every process tells the shapes of the
microbatches that it was given; what follows from them inside the model is found by running it without data, once for
every shape, on every process alike. No message says what the next one holds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from planner.errors import ExecutionError
from planner.execute.data.batch_share import BatchCutter, BatchShare
from planner.execute.data.data_agreement import find_assignment_fault, find_shape_fault
from planner.execute.data.dealt_rows import BalancedRow, BalancedRows
from planner.execute.model.cut.cut_layer import CutLayer
from planner.execute.model.listed_microbatches import MicrobatchShape, shape_of, show_shape
from planner.execute.model.user_code import calling
from planner.execute.parallel.process_groups import gather
from planner.execute.run.content_check import require_fit_microbatches
from planner.execute.run.preparation import Preparation
from planner.execute.stage.batch_copies import ready_to_copy, to_device
from planner.execute.stage.stage_module import StageShape
from planner.execute.table.layout import Layout
from planner.execute.training import Batch, Microbatches, Tensors, as_tuple


class MicrobatchRounds:
    """Gives one process its share of iteration after iteration."""

    def __init__(self, preparation: Preparation, cutter: BatchCutter, *, rank: int, device: torch.device) -> None:
        """`cutter`: what of the batch the stages here take."""
        self.preparation, self.cutter, self.rank, self.device = preparation, cutter, rank, device
        self.layout = preparation.layout
        self._traced = dict[MicrobatchShape, tuple[StageShape, ...]]()
        self._rows = None
        if preparation.training.deal is not None:
            self._rows = BalancedRows(self.layout, preparation.edges, rank=rank)

    def take(self, given: Batch | Microbatches | None, *, number: int, is_checking: bool) -> BatchShare:
        """The share of this process in an iteration; a collective call of all processes.

        Raises ExecutionError, on every process the same, if processes were given different microbatches.
        """
        mine = {} if given is None else self.preparation.list_microbatches(given)
        told = gather({place: shape_of(each) for place, each in mine.items()})
        planned = None if self._rows is not None else self.layout.num_microbatches
        if text := find_shape_fault(told, devices=self.layout.devices, number=number, planned=planned):
            raise ExecutionError(text)
        shapes = dict(sorted((place, shape) for each in told for place, shape in each.items()))
        layout, row = self._balance(list(shapes.values()), number=number)
        if is_checking:
            require_fit_microbatches(mine, layout=layout, number=number)
        return self._share(mine, layout=layout, shapes=shapes, row=row, number=number)

    def _balance(self, shapes: Sequence[MicrobatchShape], *, number: int) -> tuple[Layout, BalancedRow | None]:
        """As the plan does, or anew."""
        ask = self.preparation.training.deal
        if ask is None or self._rows is None:
            return self.layout, None
        count = len(self.layout.dealing)
        with calling("`deal`"):
            assignments = ask([torch.Size(shape[0][0]) for shape in shapes], count)
        dealing = tuple(tuple(map(int, assignment)) for assignment in assignments)
        if text := find_assignment_fault(dealing, num_pipelines=count, count=len(shapes)):
            raise ValueError(
                f"iteration {number}: `deal` gives {[list(assignment) for assignment in dealing]}: {text}; "
                "give each microbatch to one pipeline"
            )
        layout = replace(self.layout, dealing=dealing, num_microbatches=len(shapes))
        (stage,) = layout.stages_of(self.rank)
        return layout, self._rows.make(layout.assignment_of(stage, self.rank))

    def _share(
        self,
        mine: Mapping[int, Batch],
        *,
        layout: Layout,
        shapes: Mapping[int, MicrobatchShape],
        row: BalancedRow | None,
        number: int,
    ) -> BatchShare:
        assignments = {stage: layout.assignment_of(stage, self.rank) for stage in layout.stages_of(self.rank)}
        last, takers = layout.num_stages - 1, self.cutter.takers
        targets = None
        for stage in (*takers, *([last] if self.cutter.is_last else [])):
            self._require_given(assignments[stage], mine, stage=stage, number=number)
        if self.cutter.is_last:
            targets = {place: to_device(mine[place][1], device=self.device) for place in assignments[last]}
        return BatchShare(
            layout,
            batches={stage: {place: self._inputs(mine[place]) for place in assignments[stage]} for stage in takers},
            targets=targets,
            shapes={
                stage: {k: self._shapes_for(shapes[k])[stage] for k in assignment}
                for stage, assignment in assignments.items()
            },
            row=row,
        )

    def _require_given(self, assignment: Sequence[int], mine: Mapping[int, Batch], *, stage: int, number: int) -> None:
        if missing := sorted(set(assignment) - set(mine)):
            raise ValueError(
                f"stage {stage} on rank {self.rank} takes microbatch {missing[0]} of iteration {number}, but was given "
                f"{', '.join(map(str, sorted(mine))) or 'none'}; give every process all, or those of its pipeline"
            )

    def _inputs(self, microbatch: Batch) -> Tensors:
        return tuple(ready_to_copy(tensor, device=self.device) for tensor in as_tuple(microbatch[0]))

    def _shapes_for(self, shape: MicrobatchShape) -> tuple[StageShape, ...]:
        """Per stage; the model is run without data for a shape that is new."""
        if shape not in self._traced:
            tracer = self.preparation.tracer
            assert tracer is not None
            self._require_known_lengths(shape)
            inputs = tuple(torch.empty(lengths, dtype=dtype, device="meta") for lengths, dtype in shape)
            found = tracer.trace(inputs)
            for stage, (mine, first) in enumerate(zip(found, self.preparation.shapes, strict=True)):
                if not mine.is_like(first):
                    raise ValueError(
                        f"stage {stage} has other tensors for a microbatch of {show_shape(shape)} than for the first; "
                        "keep their number, types and gradients the same"
                    )
            self._traced[shape] = found
        return self._traced[shape]

    def _require_known_lengths(self, shape: MicrobatchShape) -> None:
        """Raise ValueError where a model was cut with other lengths."""
        tracer = self.preparation.tracer
        assert tracer is not None
        layers = [layer for stage in tracer.layers for layer in stage.values()]
        cut = next((layer for layer in layers if isinstance(layer, CutLayer)), None)
        if cut is not None and (misfit := cut.find_misfit([lengths for lengths, _ in shape])):
            raise ValueError(
                f"a microbatch is {show_shape(shape)}, but {misfit}: `Training.from_module` writes down what the model "
                "does with the lengths that it sees there; let the first microbatches differ in all that may differ"
            )
