"""What a layout rests on: tests of planner/recipes/cost_basis.py."""

import json
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from benchmarks.layouts import hand_plan
from benchmarks.recipe_models import KIMI_K2
from planner.evidence.certificate import check_certificate
from planner.recipes import CostBasis, layout
from planner.recipes.cost_basis import read_model
from planner.recipes.layer_chain import UNIT, make_chain
from planner.recipes.least_time import as_problem, hardest_mix
from planner.simulation.simulate import simulate


@pytest.mark.parametrize(
    ("ranks", "basis"),
    [
        (4, CostBasis()),
        (3, CostBasis(gpu="h100", tensor=4, transfer=0.1)),
        (2, CostBasis(times={"E": 1, "t": [3, 4, 5, 6] * 8, "L": 9.5})),
    ],
)
def test_times_and_bound_are_those_of_the_planner(ranks: int, basis: CostBasis):
    """Tests that simulator and certificate say what the layout says, from the same chain."""
    found = layout("llama3-8b", ranks, basis=basis)
    chain = make_chain(read_model("llama3-8b", basis=basis), basis=basis, target="megatron")
    costs, count, most = hardest_mix(chain, ranks=ranks), found.microbatches, min(12, 33 // ranks)
    problem = as_problem(chain, costs, ranks=ranks, microbatches=count, most_chunks=most)
    assert check_certificate(problem, found.certificate) == round(found.lower_bound * 3 * UNIT)
    played = simulate(problem, hand_plan(problem, str(found.value)))
    assert played.makespan_ns == round(found.time * 3 * UNIT)
    assert sum(found.stage_times) == pytest.approx(sum(found.rank_times), abs=0.01)
    assert found.gap == pytest.approx(1 - found.lower_bound / found.time)


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("tensor", 0, "tensor = 0 is out of range; give an integer from 1 to 4096"),
        ("tensor", "2", "tensor = '2' is not an integer"),
        ("sequence", 0, "sequence = 0 is out of range; give an integer from 1"),
        ("micro_batch", 1.5, "micro_batch = '1.5' is not an integer"),
        ("predicting", 9, "predicting = 9 is out of range; give an integer from 0 to 8"),
        ("dtype", "fp4", "dtype = 'fp4' is not known; give one of bf16, fp8, fp8_block, nvfp4"),
        ("mtp_loss", "x", "mtp_loss = 'x' is not known; give one of None, m, L"),
        ("transfer", True, "transfer = True; give a part of a block's forward pass from 0 to 1"),
        ("transfer", "x", "transfer = x; give a part of a block's forward pass from 0 to 1"),
        ("gpu", 3, "gpu = '3': its rates are not known; give one of a100_sxm"),
        ("experts", 3, "experts = 3: deepseek-v3 has 256; give a divisor"),
    ],
)
def test_a_basis_that_cannot_be_is_refused_by_its_field(field: str, value: object, told: str):
    """Tests that what no layout can rest on is refused, not taken for something else or found out far below."""
    with pytest.raises(ValueError, match=f"^{re.escape(told)}"):
        read_model("deepseek-v3", basis=CostBasis(**{field: value}))


def test_numbers_of_other_libraries_are_read():
    """Tests that what numpy and fractions count with is taken as the number that it is."""
    found = CostBasis(tensor=np.int64(2), sequence=np.int32(8), transfer=np.float64(0.25))
    assert found == CostBasis(tensor=2, sequence=8, transfer=Fraction(1, 4))
    assert type(found.tensor) is int


def test_a_file_is_read_as_its_fields_are(tmp_path: Path):
    """Tests that a path, a text and the fields of one configuration make one layout."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(KIMI_K2))
    wanted = layout(KIMI_K2, 4, virtual=1).value
    assert layout(path, 4, virtual=1).value == wanted
    for config in (path, str(path), json.dumps(KIMI_K2), KIMI_K2):
        assert read_model(config, basis=CostBasis()) == read_model(KIMI_K2, basis=CostBasis())


def test_modules_of_prediction_are_layers():
    """Tests that MiniMax's own fields state multi-token prediction, unless turned off, of one block each alone."""
    fields = {**KIMI_K2, "num_nextn_predict_layers": None, "num_mtp_modules": 3, "mtp_transformer_layers": 1}
    assert read_model(fields, basis=CostBasis()).predicting == 3
    assert read_model({**fields, "use_mtp": False}, basis=CostBasis()).predicting == 0
    assert read_model({**fields, "mtp_transformer_layers": None}, basis=CostBasis()).predicting == 3
    for blocks in (0, 2):
        with pytest.raises(ValueError, match=f"mtp_transformer_layers = {blocks}; only 1 is read, state predicting"):
            read_model({**fields, "mtp_transformer_layers": blocks}, basis=CostBasis())
