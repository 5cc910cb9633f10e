"""Orders by published rules: the evaluator plays a net, and a `Preference` chooses."""

from typing import NamedTuple

import numpy as np

from solver_models.instance import Integers, ShortIntegers
from solver_models.simulation.evaluator import FAR, MICROBATCHES, Net, Policy, play
from solver_models.simulation.preferences import FIRST_READY, make_preference


class ListSchedule(NamedTuple):
    """What a rule makes of a net."""

    device_orders: ShortIntegers
    """[D, longest] stage replica * 4 + kind; microbatches come in order."""
    lengths: Integers
    """[D] how many of them count."""
    makespan: int
    """Ticks; `FAR` if actions are left over, none of which has room."""
    span: int
    """Ticks from first to last action, of the device where that takes longest."""


def list_schedule(
    net: Net,
    cap: Integers,
    *,
    kinds: int,
    stages: int = FIRST_READY,
    splits: bool = True,
    most_pending: int = FAR,
    threshold: int = FAR,
) -> ListSchedule:
    """The order of every device by a rule (`Preference`); it breaks off where the makespan is sure to reach `threshold`
    ticks, and states that.
    """
    num_devices, count = len(net.devices), int(net.scalars[MICROBATCHES])
    longest = 3 * count * max(1, int(np.diff(net.device_start).max()))
    nothing = np.zeros(num_devices, np.int64)
    preference = make_preference(
        cap, (num_devices, longest, count), stages=stages, kinds=kinds, splits=splits, most_pending=most_pending
    )
    device_orders, lengths = np.zeros((num_devices, longest), np.int32), nothing.copy()
    policy = Policy(cap, nothing, nothing, preference)
    makespan, span, _ = play(net, policy, device_orders, lengths, False, threshold, None)
    return ListSchedule(device_orders, lengths, int(makespan), int(span))


def play_orders(net: Net, found: ListSchedule, *, threshold: int = FAR) -> ListSchedule:
    """The same device orders, played on another net, as far as it takes to tell whether they reach `threshold`."""
    nothing = np.zeros(1, np.int64)
    policy = Policy(nothing, nothing, nothing, None)
    makespan, span, _ = play(net, policy, found.device_orders, found.lengths, True, threshold, None)
    return found._replace(makespan=int(makespan), span=int(span))
