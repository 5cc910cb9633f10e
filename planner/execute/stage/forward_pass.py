"""Forwards alone, microbatch by microbatch: to evaluate, and to find where a value stopped being finite."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import distributed, nn

from planner.execute.stage.batch_copies import to_device
from planner.execute.stage.sample_parts import join_shares, share_of
from planner.execute.stage.stage_module import StageModule, StageShape, unflatten
from planner.execute.table.routes import SampleExchange
from planner.execute.table.wiring import BATCH, StageEdge
from planner.execute.training import Tensors


class Held(NamedTuple):
    """A stage of this process, as a pass needs it."""

    number: int
    module: StageModule
    shape: StageShape
    """Of a microbatch; where they differ, of the first."""
    inputs: Mapping[int, Tensors]
    """Per microbatch that it takes, meta tensors of what it is given."""
    batch: Mapping[int, Tensors]
    """Per microbatch its share of the batch, if it takes it."""


class ForwardPass:
    """Runs the stages of this process for one microbatch after the other; a collective call of all ranks."""

    def __init__(
        self,
        stages: Sequence[Held],
        *,
        routes: Sequence[SampleExchange],
        edges: Sequence[StageEdge],
        device: torch.device,
    ) -> None:
        """`routes`: of all stages; every pair of ranks must have met."""
        self.stages, self.device, self.rank = {stage.number: stage for stage in stages}, device, distributed.get_rank()
        ahead = [route for route in routes if "F" in route.letters]
        self.routes = sorted(ahead, key=lambda route: (route.producer, route.consumer, route.source, route.target))
        self.edges = {(edge.producer, edge.consumer): edge for edge in edges}

    @torch.no_grad()
    def run(self, microbatch: int, visit: Callable[[int, Tensors], None]) -> None:
        """`visit` is told the number and the outputs of every stage here that takes the microbatch."""
        mail, works = self._post(microbatch), list[Any]()
        for number, stage in sorted(self.stages.items()):
            if microbatch not in stage.inputs:
                continue
            outputs = self._run_stage(stage, mail, microbatch=microbatch)
            visit(number, outputs)
            for route in self.routes:
                if (route.producer, route.source) == (number, self.rank):
                    works += self._pass_on(route, stage, outputs=outputs, mail=mail)
        for work in works:
            work.wait()

    def _post(self, microbatch: int) -> dict[SampleExchange, tuple[list[torch.Tensor], list[Any]]]:
        """All receives, in the order in which every rank sends."""
        mail = {}
        for route in self.routes:
            if route.target == self.rank and route.source != self.rank:
                stage = self.stages[route.consumer]
                given = stage.inputs.get(microbatch)
                if given is None:
                    continue
                whole = stage.shape.whole_inputs
                likes = [share_of(given[k], route.used, is_whole=k in whole) for k in self._taken(route)]
                buffers = [torch.empty(like.shape, dtype=like.dtype, device=self.device) for like in likes]
                mail[route] = buffers, [distributed.irecv(buffer, src=route.source) for buffer in buffers]
        return mail

    def _taken(self, route: SampleExchange) -> list[int]:
        stage = self.stages[route.consumer]
        places = _places(stage)
        return [k for name in self.edges[route.producer, route.consumer].values for k in places[name]]

    def _run_stage(self, stage: Held, mail: Any, *, microbatch: int) -> Tensors:
        found: dict[int, list[torch.Tensor]] = {}
        if stage.batch:
            places = _places(stage)
            samples = (to_device(tensor, device=self.device) for tensor in stage.batch[microbatch])
            found = {k: [tensor] for k, tensor in zip(places[BATCH], samples, strict=True)}
        incoming = [r for r in self.routes if (r.consumer, r.target) == (stage.number, self.rank)]
        for route in sorted(incoming, key=lambda route: route.used):
            tensors, works = mail.pop(route)
            for work in works:
                work.wait()
            for k, tensor in zip(self._taken(route), tensors, strict=True):
                found.setdefault(k, []).append(tensor)
        arguments = [join_shares(found[k], is_whole=k in stage.shape.whole_inputs) for k in sorted(found)]
        outputs = stage.module(*arguments)
        return (outputs,) if isinstance(outputs, torch.Tensor) else outputs

    def _pass_on(self, route: SampleExchange, stage: Held, *, outputs: Tensors, mail: Any) -> list[Any]:
        places = unflatten(range(len(outputs)), stage.module.leaving_counts)
        names = self.edges[route.producer, route.consumer].values
        leaving, whole = [k for name in names for k in places[name]], stage.shape.whole_outputs
        parts = [share_of(outputs[k], route.made, is_whole=k in whole).contiguous() for k in leaving]
        if route.target == self.rank:
            mail[route] = parts, []
            return []
        return [distributed.isend(part, dst=route.target) for part in parts]


def _places(stage: Held) -> dict[str, tuple[int, ...]]:
    """By what arrives, the places of its tensors among the inputs."""
    counts = stage.module.counts
    return unflatten(range(sum(counts.values())), counts)


@contextmanager
def evaluating(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Meanwhile all are in evaluation mode; afterwards each part is as it was."""
    kept = [(part, part.training) for module in modules for part in module.modules()]
    for part, _ in kept:
        part.training = False
    try:
        yield
    finally:
        for part, mode in kept:
            part.training = mode
