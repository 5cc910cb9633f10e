"""One layer as an autograd segment of its own: tests of profiles/measure/segment.py."""

from typing import Any

import pytest

from tests.profiles.measure.test_measure_layers import LABELS, Store, make_model, tokens

torch = pytest.importorskip("torch")
from profiles.measure.measure_layers import Survey, survey_model  # noqa: E402
from profiles.measure.segment import MeasuringEffort, make_optimizers  # noqa: E402


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


def test_layers_may_have_several_optimizers():
    """Tests that each takes a step, and that one which fails for a layer's weights is refused by its reason."""
    weights = [torch.nn.Parameter(torch.ones(2))]
    weights[0].grad = torch.ones(2)
    made = make_optimizers(lambda given: [torch.optim.SGD(given, lr=1.0), torch.optim.Adam(given, lr=1.0)], weights)
    assert len(made) == 2
    assert weights[0].tolist() == pytest.approx([-1.0, -1.0])
    with pytest.raises(ValueError, match=r"step fails: .* 'closure'; give one that steps by gradients alone"):
        make_optimizers(torch.optim.LBFGS, weights)
    with pytest.raises(ValueError, match=r"the optimizer fails .* empty parameter list; .* an optimizer without any"):
        make_optimizers(lambda _: torch.optim.SGD([]), weights)
    assert make_optimizers(torch.optim.SGD, []) == ()


class WithoutGuard(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter -= 0.1


def test_a_step_that_autograd_records_is_refused():
    """Tests that an optimizer whose step lacks no_grad is told so."""
    with (
        torch.enable_grad(),
        pytest.raises(ValueError, match=r"the optimizer's step fails: .*; write @torch.no_grad"),
    ):
        make_optimizers(WithoutGuard, [torch.nn.Parameter(torch.zeros(2))])
