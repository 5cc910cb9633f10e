"""Windows over a whole schedule, one after the other, as long as they help or time is left."""

import random
import time

from solver_models.instance import DeviceOrder, ScheduleInstance
from solver_models.schedule.cp_neighbourhood import Better, improve_window, play_orders
from solver_models.schedule.effort import SolveEffort
from solver_models.search_params import CpWindowParams

_ACTIONS_PER_DEVICE = 10
"""In a window, at least."""
_WINDOW_LIMIT_S = 1.0


def sweep(
    instance: ScheduleInstance,
    device_orders: dict[int, DeviceOrder],
    *,
    time_limit_s: float,
    params: CpWindowParams = CpWindowParams(),
    seed: int = 0,
) -> Better | None:
    """The best device orders that random windows lead to; None if `device_orders` cannot be played or the span is
    minimised.

    As long as wall-clock limits are not reached, the same seed gives the same device orders.
    """
    best = play_orders(instance, device_orders)
    if best is None:
        return None
    choice = random.Random(seed)
    deadline = time.monotonic() + time_limit_s
    starts = sorted(best.played.starts.values())
    size = max(params.free_actions, _ACTIONS_PER_DEVICE * len(instance.devices))
    for _ in range(params.most_windows):
        if time.monotonic() >= deadline:
            break
        first = choice.randrange(max(1, len(starts) - size // 2))
        last = min(len(starts) - 1, first + size)
        found = improve_window(
            best,
            start=starts[first],
            end=starts[last] + 1,
            effort=SolveEffort(
                time_limit_s=min(_WINDOW_LIMIT_S, max(0.05, deadline - time.monotonic())),
                deterministic_limit=params.work,
                seed=choice.randrange(2**31),
            ),
        )
        best = found or best
    return best
