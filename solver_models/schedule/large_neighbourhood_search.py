"""Windows over a whole schedule, one after the other, as long as they help or time is left."""

import random
import time
from collections.abc import Callable

from solver_models.instance import ScheduleInstance, Word
from solver_models.schedule.cp_neighbourhood import Better, improve_window
from solver_models.schedule.evaluation import in_order, play

FREE_ACTIONS = 150
"""Actions in a window."""


def sweep(
    instance: ScheduleInstance,
    words: dict[int, Word],
    *,
    time_limit_s: float,
    window_limit_s: float = 1.0,
    window_work: float | None = None,
    max_windows: int | None = None,
    free_actions: int = FREE_ACTIONS,
    seed: int = 0,
    should_stop: Callable[[], bool] | None = None,
) -> Better | None:
    """The best words that random windows lead to; None if `words` cannot be played or the span is minimised.

    `window_work` is CP-SAT's own measure of work per window and `max_windows` their number: with both, and wall-clock
    limits that are not reached, the same seed gives the same words.
    """
    played = play(instance, in_order(words))
    if played is None or instance.objective != "makespan":
        return None
    choice = random.Random(seed)
    deadline = time.monotonic() + time_limit_s
    best = Better(words=in_order(words), makespan=played.makespan)
    starts = sorted(played.starts.values())
    windows = 0
    while time.monotonic() < deadline and not (should_stop is not None and should_stop()):
        if max_windows is not None and windows >= max_windows:
            break
        windows += 1
        first = choice.randrange(max(1, len(starts) - free_actions // 2))
        last = min(len(starts) - 1, first + free_actions)
        found = improve_window(
            instance,
            best.words,
            start=starts[first],
            end=starts[last] + 1,
            time_limit_s=min(window_limit_s, max(0.05, deadline - time.monotonic())),
            work_limit=window_work,
            seed=choice.randrange(2**31),
            should_stop=should_stop,
        )
        best = found or best
    return best
