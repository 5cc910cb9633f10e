"""One layer as an autograd segment of its own: tests of profiles/measure/segment.py."""

import pytest

from tests.profiles.measure.test_measure_layers import LABELS, Store, make_model, tokens

torch = pytest.importorskip("torch")
from profiles.measure.measure_layers import Survey, survey_model  # noqa: E402
from profiles.measure.segment import MeasuringEffort  # noqa: E402


def test_sizes_in_between_are_left_out():
    """Tests that of open sizes the ends and one more are measured, that those too large are not, and what depends."""
    model = make_model(tokens, LABELS.clamp(min=0))
    survey = Survey(
        microbatch_sizes=(2, 1, 4, 8, 16, 2**40),
        share=4,
        memory_bytes=2**30,
        effort=MeasuringEffort(repetitions=3, warm_up=0, seconds=1),
        recomputes=False,
    )

    found = survey_model(model, survey, defer=lambda _: Store())
    assert found.survey.microbatch_sizes[0] == 2
    assert {*found.survey.microbatch_sizes, *found.interpolated} == {1, 2, 4, 8, 16}
    assert {1, 2, 16} <= set(found.survey.microbatch_sizes)
    assert {size for _, size, _ in found.records} == set(found.survey.microbatch_sizes)
    assert (found.batch_norm, found.uneven_loss) == ("", False)
