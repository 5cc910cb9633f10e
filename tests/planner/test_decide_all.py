"""One switch for every decision: what a profile states costs for is opened, and nothing that it would have for free."""

from dataclasses import replace
from itertools import pairwise

import pytest

from api.inputs import make_question
from planner.decide_all import open_decisions
from planner.export.megatron import make_megatron_job
from planner.export.targets import TARGETS, restrict_question
from planner.planning import Limits
from planner.problem import Options, Problem
from planner.verify import verify
from profiles.model_profile import LayerCost, ModelProfile, WidthBytes
from profiles.workload import Workload
from tests.planner.builders import make_edge, make_layer, make_link, make_problem
from tests.planner.hasty import make_plan

NAMES = ("embedding", "block0", "block1", "head")


def profile_with(
    *, widths: tuple[int, ...] = (1,), recompute_ns: int | None = None, optimizer: int = 0
) -> ModelProfile:
    """A small language model that states so much."""
    layers = []
    for name in NAMES:
        costs = tuple(
            LayerCost(
                device_type="gpu",
                width=width,
                forward_ns=40 // width,
                input_grad_ns=40 // width,
                weight_grad_ns=40 // width,
                recompute_ns=recompute_ns or 0,
            )
            for width in widths
        )
        wider = tuple(
            WidthBytes(
                width=width,
                state_bytes=40 // width,
                optimizer_bytes=optimizer // width or None,
                stash_bytes=8 // width,
                checkpoint_bytes=8 // width,
            )
            for width in widths
            if width > 1
        )
        layers.append(
            make_layer(
                name, costs=costs, state_bytes=40, optimizer_bytes=optimizer or None, stash_bytes=8, wider=wider,
                checkpoint_bytes=8 if recompute_ns is None else 4,
            )
        )  # fmt: skip
    edges = tuple(make_edge(f"{a} {b}", num_bytes=1) for a, b in pairwise(NAMES))
    return ModelProfile(name="model", layers=tuple(layers), edges=edges, microbatch_size=2, scaling="linear")


def workload_of(profile: ModelProfile, **options: object) -> Workload:
    """With four devices and two microbatches."""
    cluster = make_problem([make_layer("x")], [make_link("d0 d1"), make_link("d1 d2"), make_link("d2 d3")]).cluster
    return Workload(profile=profile, cluster=cluster, num_microbatches=2, options=options)


RECOMPUTATION = ("recompute", "recompute_layers", "recompute_microbatches", "recompute_in_turn")


@pytest.mark.parametrize(
    ("stated", "opened"),
    [
        ({}, {}),
        ({"widths": (1, 2)}, {"max_width": 2}),
        ({"widths": (2, 4)}, {"max_width": 4}),
        ({"recompute_ns": 5}, dict.fromkeys(RECOMPUTATION, True)),
        ({"recompute_ns": 0}, {}),
        ({"optimizer": 20}, {"shard_optimizer": "allow"}),
    ],
)
def test_what_is_stated_is_opened(stated: dict, opened: dict):
    """Tests that widths, recomputation and sharded state are opened where the profile states what they take."""
    assert open_decisions(profile_with(**stated)) == {"max_stages_per_device": 12} | opened


def test_what_is_given_holds():
    """Tests that options of the workload and of the command line stay, and that the others are opened."""
    profile = profile_with(widths=(1, 2), recompute_ns=5)
    question = make_question(
        workload_of(profile, recompute=False), changes={"max_stages_per_device": 3}, opens_all=True
    )
    assert question.options == Options(max_width=2, max_stages_per_device=3)
    assert make_question(workload_of(profile)).options == Options()
    looped = make_question(workload_of(profile, order="looped", split_backward=False), opens_all=True).options
    assert (looped.recompute_layers, looped.recompute_microbatches) == (True, False)


def test_a_target_takes_its_part():
    """Tests that under a target what is opened is narrowed to what it runs, and the plan has its flags."""
    profile = profile_with(widths=(2,), recompute_ns=5, optimizer=20)
    question = make_question(workload_of(profile), opens_all=True)
    program = TARGETS["megatron"]
    asked = restrict_question(question, program)
    assert isinstance(asked, Problem)
    assert (asked.options.max_width, asked.options.shard_optimizer, asked.options.order) == (2, "together", "looped")
    plan = make_plan(asked, limits=Limits(time_limit_s=60, max_rounds=1), target=program)
    assert verify(asked, replace(plan, evidence=None)).passed
    flags = {words[0] for words in make_megatron_job(asked, plan).arguments}
    assert {"--tensor-model-parallel-size", "--pipeline-model-parallel-layout"} <= flags
