"""What stages take for packs."""

import math

import pytest

from planner.dealing import StageTimes
from planner.packing.pack_times import PackTimes, fit_pack_times

LENGTHS = (128, 512, 1024, 4096, 8192)


def measured(*, pack: int, token: float, square: float, lengths: tuple[int, ...] = LENGTHS) -> StageTimes:
    """Of a stage that takes exactly that, backward twice."""
    row = [pack + token * length + square * length**2 for length in lengths]
    return StageTimes(
        lengths=lengths, forward_ns=tuple(map(round, row)), backward_ns=tuple(round(2 * time) for time in row)
    )


@pytest.mark.parametrize(
    ("pack", "token", "square"), [(50_000, 1000.0, 0.25), (0, 1000.0, 0.0), (90_000, 0.0, 0.5), (70_000, 0.0, 0.0)]
)
def test_what_was_measured_is_found_again(pack: int, token: float, square: float):
    """Tests that factors are those of the measured times, those that are nothing included."""
    (found,) = fit_pack_times([measured(pack=pack, token=token, square=square)])
    assert found.of_pack == (pytest.approx(pack, abs=300), pytest.approx(2 * pack, abs=600))
    assert found.forward_token_ns == pytest.approx(token, abs=0.5)
    assert found.backward_square_ns == pytest.approx(2 * square, abs=1e-4)
    forward, backward = found.at(2048)
    assert forward + found.forward_pack_ns == pytest.approx(pack + token * 2048 + square * 2048**2, rel=1e-3)
    assert backward == pytest.approx(2 * forward, rel=1e-3)


def test_no_factor_is_negative():
    """Tests that times that grow less than their lengths are fitted without a negative square."""
    stage = StageTimes(lengths=(1, 2, 4, 8), forward_ns=(10, 19, 34, 60), backward_ns=(5, 5, 5, 5))
    (found,) = fit_pack_times([stage])
    assert found.forward_square_ns == 0
    assert found.forward_token_ns > 0
    assert (found.backward_token_ns, found.backward_square_ns, found.backward_pack_ns) == (0, 0, 5)


def test_what_cannot_be_fitted_is_refused():
    """Tests that two lengths, and negative factors, are refused with a remedy."""
    with pytest.raises(ValueError, match="three or more are needed"):
        fit_pack_times([measured(pack=1, token=1.0, square=0.0, lengths=(8, 16))])
    with pytest.raises(ValueError, match=r"backward_square_ns = -1\.0: is negative"):
        PackTimes(forward_token_ns=1.0, backward_token_ns=1.0, backward_square_ns=-1.0)
    with pytest.raises(ValueError, match="forward_token_ns = nan: is negative, or no number"):
        PackTimes(forward_token_ns=math.nan, backward_token_ns=1.0)
