"""Forwards alone, microbatch by microbatch: to evaluate, and to find where a value stopped being finite."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import distributed

from planner.execute.stage.plan_stage import Mail, PlanStage
from planner.execute.stage.sending import as_stored, in_rows
from planner.execute.table.routes import SampleExchange
from planner.execute.training import Tensors, as_tuple


class ForwardPass:
    """Runs the stages of this process for one microbatch after the other; a collective call of all ranks."""

    def __init__(
        self, stages: Sequence[PlanStage], *, assignments: Mapping[int, Sequence[int]], routes: Sequence[SampleExchange]
    ) -> None:
        """`assignments`: the microbatches of each stage; `routes`: of all stages, and every pair of ranks has met."""
        self.stages, self.assignments = {stage.stage_index: stage for stage in stages}, assignments
        ahead = [route for route in routes if "F" in route.letters]
        self.routes = sorted(ahead, key=lambda route: (route.producer, route.consumer, route.source, route.target))

    @torch.no_grad()
    def run(self, microbatch: int, visit: Callable[[int, Tensors], None]) -> None:
        """`visit` is told the number and the outputs of every stage here that takes the microbatch."""
        here = {number: stage for number, stage in self.stages.items() if microbatch in self.assignments[number]}
        self._post(here, microbatch)
        works = list[Any]()
        for number, stage in sorted(here.items()):
            stage.wait("F", microbatch)
            inputs = [tensor.detach() for tensor in stage.gather_inputs(microbatch)]
            outputs = as_tuple(stage.module(*inputs))
            visit(number, outputs)
            stage.send_out(outputs, "F", microbatch=microbatch)
            for route in self.routes:
                if route in stage.leaving["F"]:
                    works += self._pass_on(route, stage.outbox.pop((route, "F", microbatch)), microbatch=microbatch)
        for work in works:
            work.wait()

    def _post(self, here: Mapping[int, PlanStage], microbatch: int) -> None:
        """All receives, in the order in which every rank sends."""
        for route in self.routes:
            stage = here.get(route.consumer)
            if stage is not None and route in stage.arriving["F"] and route.source != route.target:
                buffers = stage.make_buffers(route, "F", microbatch=microbatch)
                works = [distributed.irecv(in_rows(buffer), src=route.source) for buffer in buffers]
                stage.inbox[route, "F", microbatch] = Mail(buffers, works)

    def _pass_on(self, route: SampleExchange, tensors: list[torch.Tensor], *, microbatch: int) -> list[Any]:
        if route.source == route.target:
            self.stages[route.consumer].inbox[route, "F", microbatch] = Mail(tensors, [])
            return []
        return [distributed.isend(as_stored(tensor), dst=route.target) for tensor in tensors]
