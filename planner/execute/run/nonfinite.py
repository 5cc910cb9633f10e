"""Where a nan or an infinity came from."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from planner.execute.parallel.process_groups import gather
from planner.execute.run.local_model import LocalModel
from planner.execute.stage.forward_pass import ForwardPass
from planner.execute.training import as_tuple

Place = tuple[int, int, str]
"""Stage, place of a layer in it, and a sentence."""


def locate_nonfinite(
    model: LocalModel, forward: ForwardPass, *, losses: Sequence[float], gradients: Sequence[str], number: int
) -> str:
    """What of an iteration is not finite, and which layer it first came out of; a collective call.

    `losses`: of every microbatch, where they are known; `gradients`: names of those here that are not finite;
    `forward`: of that iteration's batch.
    """
    mine: dict[str, Any] = {
        "losses": [(k, loss) for k, loss in enumerate(losses) if not math.isfinite(loss)],
        "grads": list(gradients),
    }
    told = gather(mine)
    bad: list[tuple[int, float]] = next((each["losses"] for each in told if each["losses"]), [])
    if bad:
        microbatch, loss = bad[0]
        places = gather(_run_again(model, forward, microbatch=microbatch))
        place = min((each for each in places if each is not None), default=None)
        where = "no layer gives such a value, so it is the loss's own" if place is None else place[2]
        return f"iteration {number}: the loss of microbatch {microbatch} is {loss}: {where}; {_UNTOUCHED}"
    rank = max(rank for rank, each in enumerate(told) if each["grads"])
    name = told[rank]["grads"][-1]
    return (
        f"iteration {number}: all losses are finite, but the gradient of {name} on rank {rank} "
        f"({model.layout.devices[rank]}), summed over all microbatches, is not; {_UNTOUCHED}"
    )


_UNTOUCHED = "the optimizer has not been run; to leave such steps out, or to look away: --on-nonfinite skip, or ignore"


def _run_again(model: LocalModel, forward: ForwardPass, *, microbatch: int) -> Place | None:
    """What first gives a value that is not finite, of the layers here."""
    for stage in model.stages:
        if stage.moment is not None:
            stage.module.moment = stage.moment._replace(microbatch=microbatch)
    with _looking(model) as found, torch.random.fork_rng([model.device] if model.device.type == "cuda" else []):
        forward.run(microbatch, lambda *_: None)
    return min(found, default=None)


@contextmanager
def _looking(model: LocalModel) -> Iterator[list[Place]]:
    """Meanwhile every layer that gives a value that is not finite is written down."""
    found = list[Place]()
    hooks = []
    where = f"rank {model.rank} ({model.layout.devices[model.rank]})"
    for stage in model.stages:
        module, number = stage.module, stage.stage_index
        for place, name in enumerate(module.wiring.layers):
            text = f"layer {name!r} of stage {number} on {where} is the first to give it"

            def look(_: Any, __: Any, given: Any, *, found_here: Place = (number, place, text)) -> None:
                floats = [each for each in as_tuple(given) if each.is_floating_point()]
                if not all(bool(each.isfinite().all()) for each in floats):
                    found.append(found_here)

            hooks.append(module.layer(name).register_forward_hook(look))
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
