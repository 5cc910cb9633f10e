"""How a model was run when it was profiled: as a field of documents, and as importers and estimators fill it."""

from dataclasses import replace
from typing import Any

import pytest

from profiles.assumptions import Assumptions
from profiles.estimates.composed_profile import CompositionQuestion, compose
from profiles.load import parse_workload
from profiles.measure.assemble import _assumptions
from profiles.measure.record import LayerBytes, LayerRecord, TensorSpec
from profiles.template import make_template
from profiles.workload import dump_workload
from tests.profiles.estimates.test_composed_profile import DENSE, MIXED, ask, make_rates

ALL = Assumptions(
    precision="bf16",
    gradients="fp32",
    attention="flash",
    fused_loss=False,
    sequence_parallel=True,
    expert_parallel=False,
    hidden_exchanges=True,
    context_parallel=2,
    distributed_optimizer=True,
    selective_modules=("core_attn", "mlp"),
    sequence_length=4096,
)


@pytest.mark.parametrize("assumptions", [ALL, Assumptions(), Assumptions(sequence_parallel=False), None])
def test_documents_keep_assumptions(assumptions: Assumptions | None):
    """Tests that a document that is written and read again states the same, false apart from not stated."""
    workload = make_template(num_layers=2, num_devices=2, num_microbatches=2)
    stated = replace(workload, profile=replace(workload.profile, assumptions=assumptions))
    assert parse_workload(dump_workload(stated).encode(), source="w").profile.assumptions == assumptions


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"precision": "bf17"}, "precision = 'bf17'; write one of fp32, "),
        ({"attention": "eager"}, "attention = 'eager'; write one of flash, unfused"),
        ({"gradients": "fp8"}, "gradients = 'fp8'; write one of fp32, "),
        ({"sequence_parallel": 1}, "sequence_parallel = '1'; write true or false"),
        ({"context_parallel": 0}, "context_parallel = 0 is out of range"),
        ({"selective_modules": ()}, "selective_modules is empty; name the modules"),
        ({"selective_modules": ("attn",)}, "selective_modules has 'attn'; give some of"),
        ({"sequence_length": 0}, "sequence_length = 0 is out of range"),
    ],
)
def test_other_values_are_refused(given: dict[str, Any], message: str):
    """Tests that a value that no program knows is refused with its field and what there is."""
    with pytest.raises(ValueError, match=message):
        Assumptions(**given)


@pytest.mark.parametrize(
    ("shape", "given", "expected"),
    [
        (DENSE, {}, {"precision": "bf16", "expert_parallel": None, "hidden_exchanges": False}),
        (DENSE, {"dtype": "fp8"}, {"precision": "fp8"}),
        (DENSE, {"hides_exchanges": True, "context": 2}, {"hidden_exchanges": True, "context_parallel": 2}),
        (MIXED, {"degrees": (1, 2)}, {"expert_parallel": True, "sequence_parallel": True}),
    ],
)
def test_composed_profiles_state_theirs(shape: Any, given: dict[str, Any], expected: dict[str, Any]):
    """Tests that a profile put together from tables states precision, attention, parallelism and sequence."""
    stated = compose(ask(shape, make_rates(), **given))[0].assumptions
    assert stated is not None
    common = {"gradients": "fp32", "attention": "flash", "fused_loss": False, "sequence_length": 256}
    assert {field: getattr(stated, field) for field in {**common, **expected}} == {**common, **expected}


@pytest.mark.parametrize(
    ("names", "precision"),
    [(("b200_sxm", "GB200"), "fp8_mx"), (("h100_sxm",), "fp8_blockwise"), (("h100", "b200"), None)],
)
def test_blocks_of_fp8_are_those_of_the_device(names: tuple[str, ...], precision: str | None):
    """Tests that fp8 in blocks is MXFP8 on Blackwell, and that nothing is stated where devices differ."""
    rates = [
        replace(
            make_rates(), name=name, lines={**make_rates().lines, "product fp8_block": make_rates().lines["attention"]}
        )
        for name in names
    ]
    question = CompositionQuestion(shape=DENSE, rates=rates, sequence=256, dtype="fp8_block")
    stated = compose(question)[0].assumptions
    assert stated is not None
    assert stated.precision == precision


def record(dtype: str, *, attention: str = "", has_gradient: bool = True) -> LayerRecord:
    """A layer that gives one tensor of a type."""
    tensor = TensorSpec(shape=(1,), dtype=dtype, num_bytes=4, has_gradient=has_gradient)
    sizes = LayerBytes(parameters=0, trained=0, state=0, saved=0, weight_saved=0, inputs=0, workspace=0)
    return LayerRecord(outputs=(tensor,), sizes=sizes, timings={}, attention=attention)


@pytest.mark.parametrize(
    ("records", "precision", "attention"),
    [
        ([record("float32")], "fp32", None),
        ([record("bfloat16", attention="flash"), record("bfloat16")], "bf16", "flash"),
        ([record("float16", attention="flash"), record("float16", attention="unfused")], "fp16", "unfused"),
        ([record("bfloat16"), record("float32")], None, None),
        ([record("float64")], None, None),
        ([record("int64", has_gradient=False), record("bfloat16")], "bf16", None),
    ],
)
def test_measured_and_estimated_profiles_state_theirs(records: list[LayerRecord], precision: str, attention: str):
    """Tests that the one type that gradients flow back in, and how an estimate counts attention, are stated."""
    expected = Assumptions(
        precision=precision,  # type: ignore[arg-type]
        gradients=precision,  # type: ignore[arg-type]
        attention=attention,  # type: ignore[arg-type]
        distributed_optimizer=False,
    )
    assert _assumptions(records) == expected
