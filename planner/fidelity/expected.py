"""What something takes on average in a run: the figure that predicts sums."""

import statistics
from collections.abc import Sequence

MOST = 3.0
"""No sample counts for more than so many medians: what stood still once is not what happens."""


def expected(samples: Sequence[int]) -> float:
    """The mean, in which no sample counts for more than `MOST` medians; 0 without samples.

    An iteration is a sum of dozens of actions. Where a host is slow for a tenth of the time, medians know nothing of
    it, and the sum is too small (docs/how-to/profile-my-model.md).
    """
    if not samples:
        return 0.0
    limit = MOST * statistics.median(samples)
    return statistics.fmean(min(sample, limit) for sample in samples) if limit > 0 else statistics.fmean(samples)


def low(samples: Sequence[int]) -> float:
    """The lower quartile."""
    return statistics.quantiles(samples, n=4, method="inclusive")[0] if len(samples) > 1 else float(sum(samples))
