"""Windows narrowed by trial: tests of solver_models/exact_order/shaving.py."""

from collections.abc import Iterator
from random import Random

import numpy as np
import pytest
from hypothesis import assume, given, settings

from solver_models.instance import BACKWARD, INPUT_GRAD, WEIGHT_GRAD, DeviceOrder
from solver_models.simulation.evaluator import FAR, SPLIT
from tests.long_runs import shortened
from tests.solver_models.every_order import enumerate_orders
from tests.solver_models.exact_order.test_branch_and_bound import randoms, small_case
from tests.solver_models.kernel_doors import shaved_windows
from tests.solver_models.nets import Case


@pytest.mark.slow
@settings(max_examples=shortened(5, whole=100))
@given(randoms)
def test_narrowing_and_shaving_keep_the_best_order(rng: Random):
    """Tests that windows just above the optimum, narrowed and shaved, leave the best order on every device."""
    case = small_case(rng)
    is_done, best = enumerate_orders(
        case.searcher, case.candidate(), threshold=FAR, most_orders=2_000, most_plays=40_000
    )
    assume(is_done and best is not None)
    assert best is not None
    jobs, windows, *leave_any = shaved_windows(case.net, best.objective + 1)
    assert leave_any == [True, True]
    for device, word in case.searcher.device_orders(best)[0].items():
        places = [jobs.place[job] for job in jobs_of(case, device, word=word)]
        for position, place in enumerate(places):
            assert not any(windows.prior[device, place] >> later & 1 for later in places[position + 1 :])
            assert not any(windows.after[device, place] >> earlier & 1 for earlier in places[:position])


def jobs_of(case: Case, device: int, *, word: DeviceOrder) -> Iterator[int]:
    """The numbers of the actions of a device in the order of its word; B is an I and then a W, if there is one."""
    net, total = case.net, case.problem.num_microbatches
    for kind, stage, microbatch in word:
        (lane,) = np.nonzero((net.replica_stage == stage) & (net.replica_device == device))[0]
        parts = [kind] if kind != BACKWARD else [INPUT_GRAD, WEIGHT_GRAD]
        for part in parts if net.scalars[SPLIT] else parts[:1]:
            yield int((lane * 3 + part) * total + microbatch)
