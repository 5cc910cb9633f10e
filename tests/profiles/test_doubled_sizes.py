"""Which sizes of microbatches are measured where nobody says how the batch is cut."""

import pytest

from profiles.doubled_sizes import bent_sizes, doublings, ends_and_middle, own_size


@pytest.mark.parametrize(
    ("batch", "sizes"),
    [
        (1, (1,)),
        (7, (1, 7)),
        (16, (1, 2, 4, 8, 16)),
        (30, (1, 3, 6, 15, 30)),
        (48, (1, 3, 6, 12, 24, 48)),
        (100, (1, 2, 5, 10, 25, 50, 100)),
        (97, (1, 97)),
    ],
)
def test_every_size_divides_the_batch(batch: int, sizes: tuple[int, ...]):
    """Tests that sizes go down from the batch by halves, or to the next divisor below a half."""
    assert doublings(batch) == sizes


def test_many_doublings_end():
    """Tests that a batch beyond anything is looked at in its larger sizes, and quickly."""
    sizes = doublings(2**30)
    assert (len(sizes), sizes[-1], sizes[0]) == (16, 2**30, 2**15)


@pytest.mark.parametrize(
    ("batch", "devices", "own"), [(16, 2, 2), (512, 8, 16), (7, 2, 1), (1, 4, 1), (48, 1, 6), (30, 2, 3)]
)
def test_own_size_leaves_microbatches_for_a_pipeline(batch: int, devices: int, own: int):
    """Tests that the profile's own size cuts the batch into eight microbatches, or four per device, if it can."""
    assert own_size(doublings(batch), num_devices=devices) == own


def test_the_ends_and_one_between_come_first():
    """Tests that the middle is the profile's own size unless that is an end."""
    assert ends_and_middle((1, 2, 4, 8, 16), own=2) == (1, 2, 16)
    assert ends_and_middle((1, 2, 4, 8), own=1) == (1, 4, 8)
    assert ends_and_middle((1, 7), own=1) == (1, 7)
    assert ends_and_middle((5,), own=5) == (5,)


SIZES = (1, 2, 4, 8, 16)


@pytest.mark.parametrize(
    ("times", "noise", "bent"),
    [
        ({1: [15.0], 2: [20.0], 16: [90.0]}, 0.0, ()),  # a constant and a slope
        ({1: [15.0], 2: [20.1], 16: [90.0]}, 0.0, ()),  # half a percent
        ({1: [15.0], 2: [20.8], 16: [90.0]}, 0.0, (4, 8)),  # 4 %
        ({1: [15.0], 2: [20.8], 16: [90.0]}, 0.045, ()),  # within what repetitions vary by
        ({1: [15.0], 2: [23.0], 16: [90.0]}, 0.9, (4, 8)),  # however much they vary
        ({1: [5.0, 5.0], 2: [9.0, 11.0], 16: [80.0, 80.0]}, 0.0, (4, 8)),  # two layers do not make up for each other
        ({1: [1.0], 16: [16.0]}, 0.5, (2, 4, 8)),  # nothing between the ends to tell by
        ({2: [1.0]}, 0.5, ()),
    ],
)
def test_what_is_straight_is_not_measured(times: dict[int, list[float]], noise: float, bent: tuple[int, ...]):
    """Tests that sizes between measured ones are interpolated where a third time lies on the line, within the noise."""
    assert bent_sizes(SIZES, times, noise=noise)[0] == bent
