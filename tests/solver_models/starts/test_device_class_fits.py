"""Pipelines on many classes of devices: within memory and devices, and close to the best of all cuts."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from random import Random

import numpy as np
import pytest

from solver_models.search_params import KindCutParams
from solver_models.starts.device_class_cuts import kind_cuts
from solver_models.starts.device_class_fits import KindFitter, kind_fits
from tests.solver_models.starts.test_device_class_cuts import UNITS, estimate, every_cut, make_kinds

TARGETS = (1.02, 1.2, 1.6, 2.0, 3.0, 5.0, 9.0)


@pytest.mark.parametrize("seed", range(12))
def test_fits_against_all_cuts(seed):
    """Tests that nothing is overdrawn, estimates are right, and the best is within 25 % of the best of all cuts."""
    rng = Random(seed)
    kinds, count, overlap = make_kinds(rng), rng.choice((1, 4, 16)), bool(seed % 2)
    kinds = replace(kinds, sync=0 * kinds.sync, sync_least=0 * kinds.sync_least)
    found = kind_fits(
        kinds, class_devices=UNITS, num_microbatches=count, overlap=overlap, known=np.inf, targets=TARGETS
    )
    for cut in found:
        assert estimate(kinds, (cut.bounds, cut.kinds), count=count, overlap=overlap) == pytest.approx(cut.estimate)
    possible = [value for cut in every_cut(kinds) if (value := estimate(kinds, cut, count=count, overlap=overlap))]
    if found:
        assert found == sorted(found, key=lambda cut: cut.estimate)
        assert found[0].estimate <= 1.25 * min(possible)


def test_most_problems_have_fits():
    """Tests that of random problems with a cut nearly all get one."""
    missed = 0
    for seed in range(30):
        kinds = make_kinds(Random(seed))
        options = {"num_microbatches": 4, "overlap": True, "known": np.inf}
        exact = kind_cuts(kinds, class_units=UNITS, params=KindCutParams(coarse=8.0, limits=20), **options)
        missed += bool(exact) > bool(kind_fits(kinds, class_devices=UNITS, targets=TARGETS, **options))
    assert missed <= 2


def test_stages_are_within_the_limit():
    """Tests that every stage takes at most the limit, its messages included where devices are busy with them."""
    kinds = make_kinds(Random(5), size=12)
    fitter = KindFitter(kinds, (8, 8), num_microbatches=4, overlap=False)
    limit = 3 * fitter.lower_bound
    cuts = list(fitter.within(limit))
    assert cuts
    for cut in cuts:
        used = Counter[int]()
        for kind, (a, b) in zip(cut.kinds, pairwise(cut.bounds), strict=True):
            busy = kinds.load[kind, b] - kinds.load[kind, a] + kinds.crossing[kind, a] + kinds.crossing[kind, b]
            assert busy <= limit
            used[int(kinds.device_class[kind])] += int(kinds.units[kind])
        assert all(count <= 8 for count in used.values())


def test_what_is_known_to_be_better_is_left():
    """Tests that nothing is tried where no stage could be as fast as in a plan that is known."""
    kinds = make_kinds(Random(1))
    options = {"class_devices": UNITS, "num_microbatches": 4, "overlap": True, "targets": TARGETS}
    assert kind_fits(kinds, known=np.inf, **options)
    assert kind_fits(kinds, known=1.0, **options) == []
