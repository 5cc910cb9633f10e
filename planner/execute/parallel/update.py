"""From gradients that are added up to weights: scaling, clipping, the optimizers and their schedules."""

import copy
import inspect
import warnings
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import distributed, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from planner.execute.model.user_code import calling
from planner.execute.parallel.finite_check import MANY_BYTES, are_finite, queue_finite_check
from planner.execute.parallel.partial_steps import OptimizerStep
from planner.execute.parallel.reduction import StageReduction, Tie, clip_gradients, gradients_of
from planner.execute.parallel.sharding import ShardPiece
from planner.execute.training import Training


class Update:
    """The optimizers of one process, and how far they are."""

    def __init__(
        self,
        training: Training,
        named: Sequence[tuple[str, nn.Parameter]],
        *,
        counted: Sequence[nn.Parameter],
        device: torch.device,
        pieces: Mapping[int, ShardPiece] = MappingProxyType({}),
        wholes: Mapping[int, nn.Parameter] = MappingProxyType({}),
        whole: Mapping[str, nn.Parameter] = MappingProxyType({}),
    ) -> None:
        """`named`: all parameters here, as `layer:path`; `counted`: those, or their pieces, that no other process
        counts; `pieces`: by the identity of the parameter in whose place each is stepped; `wholes`: what a group
        computes with, by the identity of the part of it that is named here; `whole`: as in `make_optimizers`.
        """
        self.training, self.device, self.counted, self.pieces = training, device, list(counted), pieces
        self.wholes = wholes
        self.parameters = list(dict.fromkeys(parameter for _, parameter in named))
        self.stepped = [self.stepped_for(parameter) for parameter in self.parameters]
        """Those that have the gradients when a step is taken."""
        held = (*self.parameters, *self.stepped, *wholes.values())
        self._held = tuple({id(parameter): parameter for parameter in held}.values())
        trained = [(name, parameter) for name, parameter in named if parameter.requires_grad]
        self.trained = [(name, self.stepped_for(parameter)) for name, parameter in trained]
        shown = dict[nn.Parameter, tuple[str, nn.Parameter]]()
        for name, parameter in trained:  # a weight of several layers by its first name
            shown.setdefault(self.stepped_for(parameter), (name, wholes.get(id(parameter), parameter)))
        self.optimizers = make_optimizers(training, list(shown.values()), stepped=list(shown), whole=whole)
        self._steps = [OptimizerStep(each, is_accelerated=device.type == "cuda") for each in self.optimizers]
        self.schedules = make_schedules(training, self.optimizers)
        self.num_updates = 0
        """Steps that the optimizers have taken."""
        self.scale = 1.0 if training.loss_scale is None else training.loss_scale.initial
        self.num_good = 0
        """Iterations since the loss scale was changed."""
        self._found, self._one = torch.zeros((), device=device), torch.ones((), device=device)
        self._are_few = sum(each.nbytes for each in self.stepped) < MANY_BYTES
        self._together: list[torch.Tensor] = []
        """All gradients here, where they lie side by side."""
        self._finite: torch.Tensor | None = None
        """Whether they are finite, where an accelerator was asked."""
        self.is_spoiled = False
        """Something was not finite since the last step."""
        self.num_tokens = 0.0
        """Since the last step."""
        self.num_means = 0.0
        """Means, of a microbatch and a replica's share of it, that were added up since the last step."""
        if training.float32_gradients:
            self._use_long_types()

    def stepped_for(self, parameter: nn.Parameter) -> nn.Parameter:
        """The parameter itself, or its piece here."""
        piece = self.pieces.get(id(parameter))
        return parameter if piece is None else piece.parameter

    def is_due(self, number: int) -> bool:
        """Whether the optimizers take a step after this iteration."""
        return (number + 1) % self.training.accumulate == 0

    def add_up(self, reductions: Sequence[StageReduction], ties: Sequence[Tie]) -> None:
        """Finish the gradients; a collective call."""
        divisor = float(self.num_means)
        if self.training.num_tokens is not None:
            total = torch.tensor(self.num_tokens, dtype=torch.float64, device=self.device)
            distributed.all_reduce(total, distributed.ReduceOp.MAX)
            divisor = float(total)
        self.num_tokens, self.num_means = 0.0, 0.0
        for reduction in reductions:
            reduction.finish(divisor * self.scale)
        for tie in ties:
            tie.share_grad()
        for reduction in reductions:
            reduction.finish_buckets()
        flats = [flat for reduction in reductions for flat in reduction.flats]
        self._together = flats if flats and not ties and all(each.flats for each in reductions) else []

    def clip(self) -> float | None:
        """Scale all gradients to the norm allowed; a collective call. Gives the norm before, if there is a limit."""
        if self.training.max_norm is None:
            return None
        return clip_gradients(self.stepped, counted=self.counted, max_norm=self.training.max_norm, device=self.device)

    def start_check(self) -> None:
        """Ask an accelerator what `has_finite_gradients` is to tell, while it still computes."""
        if self.device.type != "cpu":
            self._finite = queue_finite_check(self._grads())

    def has_finite_gradients(self) -> bool:
        """Whether all here are; asked once per step, so it costs no more than reading them once."""
        finite, self._finite = self._finite, None
        if finite is not None:
            return bool(finite.item())
        grads = self._grads()
        return not grads or are_finite(grads, found=self._found, one=self._one, are_few=self._are_few)

    def _grads(self) -> list[torch.Tensor]:
        return self._together or [grad for each in self.stepped if (grad := each.grad) is not None]

    def nonfinite_gradients(self) -> list[str]:
        """Names of the parameters here whose gradients are not finite."""
        return [name for name, each in self.trained if not all(bool(g.isfinite().all()) for g in gradients_of([each]))]

    def finish(self, *, is_good: bool) -> bool:
        """Take a step, or leave it out; forget the gradients. Gives whether a step was taken."""
        is_good, self.is_spoiled = is_good and not self.is_spoiled, False
        if is_good:
            if self.training.float32_gradients:
                self._use_own_types()
            for optimizer, step in zip(self.optimizers, self._steps, strict=True):
                with taking_step(optimizer):
                    step.take()
            for schedule in self.schedules:
                with calling(f"the schedule's step ({type(schedule).__name__})"):
                    schedule.step()
            self.num_updates += 1
        self._rescale(is_good=is_good)
        for parameter in self._held:  # those that no optimizer has among them
            parameter.grad = None
        if self.training.float32_gradients:
            self._use_long_types()
        return is_good

    def _use_long_types(self) -> None:
        for parameter in _short(self._held):
            parameter.grad_dtype = torch.float32

    def _use_own_types(self) -> None:
        """Optimizers expect gradients of the parameters' own types."""
        for parameter in _short(self.stepped):
            grad, parameter.grad = parameter.grad, None
            parameter.grad_dtype = parameter.dtype
            if grad is not None:
                parameter.grad = grad.to(parameter.dtype)

    def _rescale(self, *, is_good: bool) -> None:
        rule = self.training.loss_scale
        if rule is None:
            return
        self.num_good = self.num_good + 1 if is_good else 0
        if not is_good:
            self.scale *= rule.backoff
        elif self.num_good >= rule.interval:
            self.scale, self.num_good = self.scale * rule.growth, 0

    def state(self) -> dict[str, float]:
        """What is the same on every process, to continue from."""
        return {"num_updates": float(self.num_updates), "scale": self.scale, "num_good": float(self.num_good)}

    def go_on(self, state: Mapping[str, float]) -> None:
        """Take up that state: schedules are brought to where they were by as many steps as they had taken."""
        self.num_updates, self.num_good = int(state["num_updates"]), int(state["num_good"])
        self.scale = state["scale"]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step\\(\\)` before")
            for schedule in self.schedules:
                for _ in range(self.num_updates):
                    schedule.step()

    def settings(self) -> dict[str, dict[str, Any]]:
        """What the optimizers' groups are told about each parameter (rates, decay), by name."""
        told = {
            id(parameter): {key: value for key, value in group.items() if key != "params"}
            for optimizer in self.optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        return {name: told[id(parameter)] for name, parameter in self.trained if id(parameter) in told}

    def apply_settings(self, settings: Mapping[str, Mapping[str, Any]]) -> None:
        """Tell the groups what they were told; of a group's parameters the first speaks."""
        names = {id(parameter): name for name, parameter in self.trained}
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"][:1]:
                    group.update(settings.get(names[id(parameter)], {}))

    def optimizer_of(self, parameter: nn.Parameter) -> torch.optim.Optimizer | None:
        """The one that has it, or its piece."""
        parameter = self.stepped_for(parameter)
        for optimizer in self.optimizers:
            if any(each is parameter for group in optimizer.param_groups for each in group["params"]):
                return optimizer
        return None


def _short(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    return [each for each in parameters if each.requires_grad and each.dtype in (torch.bfloat16, torch.float16)]


_BY_GRADIENTS = "give an optimizer that steps by gradients alone, as SGD or AdamW do"


def taking_step(optimizer: torch.optim.Optimizer) -> calling:
    """Around its step: what fails is named, and what to give instead."""
    return calling(f"the optimizer's step ({type(optimizer).__name__})", remedy=_BY_GRADIENTS)


def make_optimizers(
    training: Training,
    named: Sequence[tuple[str, nn.Parameter]],
    *,
    stepped: Sequence[nn.Parameter],
    whole: Mapping[str, nn.Parameter] = MappingProxyType({}),
) -> tuple[torch.optim.Optimizer, ...]:
    """Those of the factory, which gets the parameters in the model's order; `stepped`: what stands for each there;
    `whole`: all of the model, whose shapes count: those that are not here are taken out again.

    Raises ValueError if the factory gives something else, a parameter twice, or one of another model.
    """
    if not named:
        return ()
    named, copies = _as_in_one_process(training, named, stepped=stepped, whole=whole)
    here, stepped = set(map(id, stepped)), [mine for mine, *_ in copies]
    given: list[Any] = list(stepped) if training.settings is None else _groups(training, named, stepped=stepped)
    with calling("the optimizer's factory"):
        made = training.optimizer(given)
    optimizers = tuple(made) if isinstance(made, Sequence) else (made,)
    for optimizer in optimizers:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ValueError(
                f"the optimizer's factory returns a {type(optimizer).__name__}; give torch.optim.Optimizers"
            )
        closure = inspect.signature(type(optimizer).step).parameters.get("closure")
        if closure is not None and closure.default is closure.empty:
            kind = type(optimizer).__name__
            raise ValueError(f"the step of {kind} wants a closure, but a loss is taken once; {_BY_GRADIENTS}")
    names = {id(each): name for (name, _), each in zip(named, stepped, strict=True)}
    owners: set[int] = set()
    for parameter in (each for o in optimizers for group in o.param_groups for each in group["params"]):
        if id(parameter) not in names:
            raise ValueError(
                f"the optimizer steps a weight {tuple(parameter.shape)} that its factory was not given; make it of the "
                "list that the factory is called with, and keep copies of weights in its state"
            )
        if id(parameter) in owners:
            raise ValueError(f"{names[id(parameter)]} is given to two optimizers; give each parameter to one")
        owners.add(id(parameter))
    twins = {id(mine): more for mine, *more in copies}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in (each for each in group["params"] if id(each) not in here):
                optimizer.state.pop(parameter, None)
            own = [each for each in group["params"] if id(each) in here]
            for parameter in (each for each in own if each in optimizer.state):
                for twin in twins[id(parameter)]:
                    optimizer.state[twin] = copy.deepcopy(optimizer.state[parameter])
            group["params"] = [each for first in own for each in (first, *twins[id(first)])]
    return tuple(each for each in optimizers if any(group["params"] for group in each.param_groups))


class _Elsewhere(nn.Parameter):
    """Stands for a weight of another process, without memory: constructors may make states of its size."""

    def data_ptr(self) -> int:
        """Another one for each: factories may tell weights apart by it."""
        return id(self)


def _as_in_one_process(
    training: Training,
    named: Sequence[tuple[str, nn.Parameter]],
    *,
    stepped: Sequence[nn.Parameter],
    whole: Mapping[str, nn.Parameter],
) -> tuple[list[tuple[str, nn.Parameter]], list[list[nn.Parameter]]]:
    """All weights in the model's order, a tie once by its first name, and of each the copies here; in the place of
    those elsewhere are others of their shapes.
    """
    first = {each: names[0] for names in training.tied for each in names}
    rows: dict[str, list[tuple[tuple[str, nn.Parameter], nn.Parameter]]] = {first.get(n, n): [] for n in whole}
    for pair, mine in zip(named, stepped, strict=True):
        rows.setdefault(first.get(pair[0], pair[0]), []).append((pair, mine))
    for name, own in rows.items():
        if not own:
            own.append(((name, whole[name]), _Elsewhere(torch.empty_like(whole[name], device="meta"))))
    names = sorted(rows, key=lambda name: training.order.get(name, len(training.order)))
    shown = [(name, rows[name][0][0][1]) for name in names]
    return shown, [[mine for _, mine in rows[name]] for name in names]


def _groups(
    training: Training, named: Sequence[tuple[str, nn.Parameter]], *, stepped: Sequence[nn.Parameter]
) -> list[Any]:
    """Parameters that are told the same, in the order in which they come."""
    groups: dict[str, dict[str, Any]] = {}
    for (name, parameter), mine in zip(named, stepped, strict=True):
        assert training.settings is not None
        with calling(f"`settings` for {name}"):
            settings = dict(training.settings(name, parameter))
        key = repr(sorted(settings.items()))
        groups.setdefault(key, {"params": [], **settings})["params"].append(mine)
    return list(groups.values())


def make_schedules(training: Training, optimizers: Sequence[torch.optim.Optimizer]) -> list[Any]:
    """Of the learning rate, one for each; raises ValueError for those that need more than the number of steps."""
    schedules: list[Any] = []
    for optimizer in optimizers if training.schedule is not None else ():
        assert training.schedule is not None
        with calling("the schedule's factory"):
            schedule = training.schedule(optimizer)
        if isinstance(schedule, ReduceLROnPlateau) or not callable(getattr(schedule, "step", None)):
            raise ValueError(
                f"the schedule is a {type(schedule).__name__}, which needs more than the number of steps; set the rate "
                "in your own loop (docs/how-to/run-it.md)"
            )
        schedules.append(schedule)
    return schedules
