"""A stage of torch's pipelining as a plan runs it: F, I, W and B of one microbatch after the other.

What differs from `PipelineStage` itself: gradients are reduced by our own hand, weight gradients may be put off, every
action is noted, and tensors live no longer than they are needed.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.distributed.pipelining import PipelineStage

from planner.execute.model.deferred import WeightGrads, WeightGradStore, defer_weight_grads
from planner.execute.model.layer_run import Moment
from planner.execute.parallel.reduction import StageReduction
from planner.execute.record.action_log import ActionLog
from planner.execute.stage.stage_module import StageModule, StageShape, unflatten
from planner.execute.stage.weight_stream import WeightStream
from planner.execute.torch_versions.kept_outputs import kept_outputs, replace_outputs
from planner.execute.training import Tensors, as_tuple


class PlanStage(PipelineStage):
    """One stage of the plan on this process."""

    def __init__(
        self,
        module: StageModule,
        number: int,
        *,
        num_stages: int,
        shape: StageShape,
        device: torch.device,
        group: Any,
        log: ActionLog,
        is_deferring: bool,
    ) -> None:
        """`is_deferring`: split the backward by putting off weight gradients (see `defer_layers`); otherwise
        by torch's own two passes.
        """
        self.log, self.store, self.outputs = log, WeightGradStore(), shape.outputs
        self.is_deferring = is_deferring
        self.split: frozenset[int] = frozenset()
        """The microbatches whose backward is I and W; all others run as torch would run them."""
        self.reduction: StageReduction | None = None
        self.weight_stream: WeightStream | None = None
        """Where W runs, if not where everything else does."""
        self.putting_off: Callable[[], AbstractContextManager[None]] = nullcontext
        """Within which I runs."""
        self._has_own_weights = False
        """Whether I was seen to leave alone what W adds to."""
        self.wanting = frozenset(k for k, like in enumerate(shape.inputs) if like.requires_grad)
        """Places of the inputs that need gradients."""
        self.used_inputs = set[int]()
        """Places of those that got one since the last step."""
        self.moment: Moment | None = None
        """Of the iteration's first microbatch: what its random numbers depend on."""
        if is_deferring:
            self.store.is_open = False
            module.store = self.store
        module.clones_views = not is_deferring
        super().__init__(
            module,
            number,
            num_stages,
            device,
            input_args=shape.inputs,
            output_args=shape.outputs,
            group=group,
            dw_builder=self.store.take if is_deferring else None,
        )

    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        """F; raises RuntimeError if it gives something else than was made room for where it is sent to."""
        module = cast(StageModule, self.submod)
        module.begin(args[0], moment=self.moment)
        self.store.is_noting = args[0] in self.split
        with self.log.computing():
            output = super().forward_one_chunk(*args, **kwargs)
        self.require_planned(as_tuple(output), microbatch=args[0])
        return output

    def planned_outputs(self, microbatch: int) -> Tensors:  # noqa: ARG002
        """Meta tensors of what F of a microbatch gives."""
        return self.outputs

    def require_planned(self, outputs: Sequence[torch.Tensor], *, microbatch: int) -> None:
        """Raise RuntimeError if they are not what was made room for."""
        for place, (mine, planned) in enumerate(zip(outputs, self.planned_outputs(microbatch), strict=True)):
            if mine.shape != planned.shape or mine.dtype != planned.dtype:
                raise RuntimeError(
                    f"stage {self.stage_index} gives {tuple(mine.shape)} {mine.dtype} as tensor {place}, but gave "
                    f"{tuple(planned.shape)} {planned.dtype} when the model was traced; keep shapes and types in "
                    "every iteration, and give microbatches of different lengths as lists"
                )

    def release_outputs(self, microbatch: int) -> None:
        """Outputs are where they are needed: what is kept is the graph behind them, with what it saved."""
        if not self.is_deferring:
            return  # torch's own split wants the tensors themselves
        outputs = () if self.is_last else kept_outputs(self, microbatch)
        roots = [get_gradient_edge(y) if y.requires_grad else None for y in outputs]
        replace_outputs(self, microbatch, roots=roots)

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> None:
        """B, or I: then weight gradients wait."""
        is_whole = kwargs.get("full_backward", True)
        self.store.is_deferring = self.store.is_noting = not is_whole
        if self.weight_stream is not None and is_whole:
            self.weight_stream.settle()  # B adds to the same gradients
        before = self._grad_versions()
        with self.log.computing(), self.store.opened(), nullcontext() if is_whole else self.putting_off():
            super().backward_one_chunk(*args, **kwargs)
        if self.leaves_alone:
            self.used_inputs |= {k for k, grad in enumerate(self.bwd_cache[args[0]]) if grad is not None}
        if self.weight_stream is not None and not is_whole:
            self._require_own_weights(before, self.dw_runner[args[0]])

    @property
    def used_values(self) -> set[str]:
        """Names of the values that arrive and got a gradient since the last step, in one of their tensors at least."""
        module = cast(StageModule, self.submod)
        places = unflatten(range(sum(module.counts.values())), module.counts)
        return {name for name, own in places.items() if not self.used_inputs.isdisjoint(own)}

    @property
    def leaves_alone(self) -> bool:
        """Whether an input that needs a gradient got none since the last step."""
        return len(self.used_inputs) < len(self.wanting)

    def _grad_versions(self) -> dict[int, tuple[int, int]]:
        """By parameter which gradient it has, and how often that was changed; while that is still to be looked at."""
        if self.weight_stream is None or self._has_own_weights:
            return {}
        return {id(p): _version(p) for p in cast(StageModule, self.submod).parameters()}

    def _require_own_weights(self, before: Mapping[int, tuple[int, int]], waiting: Any) -> None:
        """I and W would add to one gradient at the same time: raises RuntimeError."""
        for call in () if self._has_own_weights else waiting.calls:
            for parameter in call.trained:
                if _version(parameter) != before[id(parameter)]:
                    raise RuntimeError(
                        f"{call.rule.name} shares a weight with something that does not wait for W: both would add to "
                        "its gradient at the same time; run without --weight-stream"
                    )
        self._has_own_weights = True

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        """W."""
        if self.weight_stream is None:
            with self.log.computing():
                super().backward_weight_one_chunk(bwd_chunk_id, last_backward)
            return
        calls = cast(WeightGrads, self.dw_runner[bwd_chunk_id]).calls
        tensors = [tensor for call in calls for tensor in (call.x, call.grad)]
        with self.weight_stream.running(tensors), self.log.computing():
            super().backward_weight_one_chunk(bwd_chunk_id, last_backward)

    def backward_maybe_with_nosync(
        self, backward_type: Any, bwd_kwargs: dict[str, Any], *rest: Any, **more: Any
    ) -> tuple[tuple[torch.Tensor | None, ...], Any]:
        """What torch does, for outputs that are there no more."""
        outputs = bwd_kwargs["stage_output"]
        if isinstance(outputs, torch.Tensor) or not any(isinstance(each, GradientEdge) for each in outputs):
            return super().backward_maybe_with_nosync(backward_type, bwd_kwargs, *rest, **more)
        pairs = zip(outputs, bwd_kwargs["output_grads"], strict=True)
        roots = [(root, grad) for root, grad in pairs if root is not None]
        torch.autograd.backward([root for root, _ in roots], [grad for _, grad in roots])
        inputs = bwd_kwargs["input_values"]
        grads = tuple(tensor.grad for tensor in inputs)
        for tensor in inputs:
            tensor.grad = None
        return grads, None

    def start_reduction(self) -> None:
        """Once per iteration, after the last W or B."""
        if self.weight_stream is not None:
            self.weight_stream.settle()
        if self.reduction is None:
            raise RuntimeError(f"stage {self.stage_index} has no reduction")
        self.reduction.start()


def _version(parameter: torch.Tensor) -> tuple[int, int]:
    grad = parameter.grad
    return (0, 0) if grad is None else (id(grad), grad._version)


def defer_layers(module: StageModule, store: WeightGradStore, *, shape: StageShape) -> None:
    """All layers' weight gradients may wait, but for those of layers that call torch.autograd themselves."""
    for name in module.wiring.layers:
        layer = module.layer(name)
        if not shape.traits[name].differentiates:
            defer_weight_grads(layer, store, owner=name)
