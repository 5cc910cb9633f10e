"""The question that an audited configuration answers: what its replicas exchange at the end."""

from dataclasses import replace
from typing import Any

import pytest

from api.auditing.audited_problem import HOST_NS, make_audited_problem
from api.auditing.configuration_files import read_configuration
from profiles.configurations.argument_forms import ReadArguments
from profiles.configurations.audit_question import AuditQuestion
from profiles.configurations.known_models import find_sheet
from profiles.configurations.megatron_run import read_megatron
from profiles.configurations.run_configuration import Recomputation
from profiles.estimates.composed_profile import CompositionQuestion, compose
from profiles.estimates.networks import RING_SHARE
from profiles.estimates.run_settings import settings_of
from profiles.held_once import HeldOnce
from profiles.importers.aiconfigurator.default_rates import default_rates_of
from profiles.model_profile import Layer

EXPERT = 3 * 4096 * 14336
"""Weights of one expert of Mixtral's 8x7B."""


@pytest.mark.parametrize(("experts", "held", "cards"), [(8, 1, 1), (4, 2, 2), (1, 8, 8)])
def test_experts_are_exchanged_over_the_cards_of_their_replicas(experts: int, held: int, cards: int) -> None:
    """Tests that the ring of an expert's replicas has the card of one device of a node in so many as share experts."""
    flags = {"world_size": "32", "expert_model_parallel_size": str(experts), "expert_tensor_parallel_size": "1"}
    run = read_megatron(ReadArguments(values={}, kind="options"), options=dict(flags), model="mixtral-8x7b")
    problem = make_audited_problem(run, gpu="b200").problem
    replicas = 32 // experts
    exchange_ns = (replicas - 1) / replicas * 8 * held * EXPERT / (RING_SHARE * cards * 50)
    block = next(layer for layer in problem.profile.layers if layer.name == "block.0")
    rest_ns = block.costs[0].optimizer_ns - exchange_ns
    weights = block.parameter_bytes // 2
    dense_ns = 31 / 32 * 8 * (weights - held * EXPERT) / (RING_SHARE * 400)
    assert rest_ns == pytest.approx(dense_ns + 30 * weights / (0.8 * 7_700), rel=0.2)


@pytest.mark.parametrize("program", ["megatron", "torchtitan", "deepspeed"])
def test_a_stated_network_is_the_one_between_nodes(program: Any) -> None:
    """Tests that links, exchanges of replicas and those of contexts over nodes take twice as long at half the speed."""
    degrees = {"tp": 1, "cp": 16} if program != "deepspeed" else {"tp": 1}
    question = AuditQuestion(program=program, model="llama3-8b", devices=64, pp=2, seq_length=8192, **degrees)
    run = read_configuration(question)
    sheets = [find_sheet("a100", network_gb_per_s=speed) for speed in (None, 25, 12.5)]
    usual, same, slow = (make_audited_problem(run, gpu=sheet) for sheet in sheets)
    assert usual.problem == same.problem
    speeds = [each.problem.cluster.links[0].bandwidth_bytes_per_s for each in (usual, slow)]
    assert speeds == [25 * 10**9, 12_500_000_000]
    costs = [each.problem.profile.layers[1].costs[0] for each in (usual, slow)]
    assert costs[1].optimizer_ns > 1.2 * costs[0].optimizer_ns
    assert (costs[1].forward_ns > costs[0].forward_ns) == (program != "deepspeed")


def test_a_stated_network_that_joins_nothing_is_refused() -> None:
    """Tests that a speed between nodes is refused where all devices are in one, and where no network has it."""
    run = read_configuration(AuditQuestion(program="megatron", model="llama3-8b", devices=8, pp=2))
    with pytest.raises(ValueError, match="all 8 GPUs are in one node; leave it out"):
        make_audited_problem(run, gpu=find_sheet("h100", network_gb_per_s=12.5))
    for speed in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=r"--network-gb-per-s .*: give gigabytes per second, 0\.001 to 1,000,000"):
            find_sheet("h100", network_gb_per_s=speed)


def test_a_tied_head_is_held_once() -> None:
    """Tests that a device with embedding and head holds their table once, where two devices hold one each."""
    flags = {"num_layers": "2", "hidden_size": "512", "num_attention_heads": "8", "vocab_size": "32000"}
    options = {**flags, "pipeline_model_parallel_size": "1"}
    states = []
    for more in ({}, {"untie_embeddings_and_output_weights": True}, {"pipeline_model_parallel_size": "2"}):
        run = read_megatron(ReadArguments(values={}, kind="options"), options={**options, **more}, model=None)
        layers = make_audited_problem(run, gpu="h100").problem.profile.layers
        states.append((layers[0].state_bytes, layers[-1].state_bytes))
    table = 18 * 32000 * 512
    assert states == [(table, 0), (table, table), (table, table)]


@pytest.mark.parametrize(("devices", "gb_per_s"), [("2", 300), ("16", RING_SHARE * 50)])
def test_stages_sum_gradients_of_a_tied_table(devices: str, gb_per_s: float) -> None:
    """Tests that two stages exchange a tied table's gradients, within a node or over a card, and no block's."""
    flags = {"num_layers": "2", "hidden_size": "512", "num_attention_heads": "8", "vocab_size": "32000"}
    options = {**flags, "pipeline_model_parallel_size": "2", "world_size": devices}
    steps = []
    for more in ({}, {"untie_embeddings_and_output_weights": True}):
        run = read_megatron(ReadArguments(values={}, kind="options"), options={**options, **more}, model=None)
        layers = make_audited_problem(run, gpu="h100").problem.profile.layers
        steps.append([layer.costs[0].optimizer_ns for layer in layers])
    more_ns = [tied - alone for tied, alone in zip(*steps, strict=True)]
    assert more_ns[1:-1] == [0, 0]
    assert more_ns[0] == more_ns[-1] == pytest.approx(4 * 32000 * 512 / gb_per_s, abs=1)


def test_groups_of_replicas_shard_by_themselves() -> None:
    """Tests that states are divided within a group where replicas are in several, as in HSDP."""
    held = []
    for instances in ("1", "2", "8"):
        flags = {"world_size": "8", "num_distributed_optimizer_instances": instances, "use_distributed_optimizer": True}
        run = read_megatron(ReadArguments(values={}, kind="options"), options=dict(flags), model="llama3-8b")
        held.append(make_audited_problem(run, gpu="h100").problem.profile.layers[1].optimizer_bytes or 0)
    assert held[1] == 2 * held[0]
    assert held[2] == 8 * held[0]


@pytest.mark.parametrize(
    ("more", "gpu", "waits"),
    [
        ({}, "h100", True),
        ({"cuda_graph_impl": "full_iteration"}, "h100", False),
        ({"cuda_graph_impl": "local", "cuda_graph_scope": "full_iteration"}, "h100", False),
        ({"cuda_graph_scope": "attn moe_router"}, "h100", True),
    ],
)
def test_hosts_launch_blocks_with_experts(more: dict[str, str], gpu: str, waits: bool) -> None:
    """Tests that such a block takes what its host does at any degrees, but for graphs of whole iterations."""
    times = []
    for tensor in ("4", "8"):
        degrees = {"tensor_model_parallel_size": tensor, "sequence_parallel": True, "seq_length": "2048"}
        read = ReadArguments(values={}, kind="options")
        audited = make_audited_problem(read_megatron(read, options=degrees | more, model="qwen3-30b-a3b"), gpu=gpu)
        times.append(passes_ns(audited.problem.profile.layers[1]))
        assert ("a host that takes 7.6 ms" in audited.origin) == waits
    assert (abs(times[0] - times[1]) < 9) == (abs(times[0] - HOST_NS) < 9) == waits


def passes_ns(layer: Layer) -> int:
    """F, I and W."""
    cost = layer.costs[0]
    return cost.forward_ns + cost.input_grad_ns + cost.weight_grad_ns


@pytest.mark.parametrize("program", ["torchtitan", "deepspeed"])
def test_hosts_of_other_programs_were_not_measured(program: Any) -> None:
    """Tests that blocks with experts of other programs, and blocks without, take what their card does."""
    run = read_configuration(AuditQuestion(program=program, model="qwen3-30b-a3b", pp=4, seq_length=512))
    assert passes_ns(make_audited_problem(run, gpu="h100").problem.profile.layers[1]) < HOST_NS
    run = read_configuration(AuditQuestion(program="megatron", model="qwen3-0.6b", pp=4, seq_length=512))
    assert passes_ns(make_audited_problem(run, gpu="h100").problem.profile.layers[1]) < HOST_NS


@pytest.mark.parametrize(
    ("flags", "state", "stash"),
    [
        ({}, True, True),
        ({"use_distributed_optimizer": True}, False, True),
        ({"tensor_model_parallel_size": "2"}, False, False),
        ({"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": "1"}, True, True),
    ],
)
def test_what_layers_hold_once_is_of_single_devices(flags: dict[str, Any], state: bool, stash: bool) -> None:
    """Tests that replicas that shard share no state, and groups nothing, where a measured profile is audited."""
    size = {"num_layers": "2", "hidden_size": "512", "num_attention_heads": "8", "vocab_size": "32000"}
    options = {"world_size": "4", **size, **flags}
    run = read_megatron(ReadArguments(values={}, kind="options"), options=options, model=None)
    question = CompositionQuestion(
        shape=run.shape,
        rates=[default_rates_of("h100_sxm")],
        sizes=(run.micro_batch,),
        degrees=(1, 2),
        **settings_of(run),
    )
    profile, _ = compose(question)
    first, *_, last = profile.layers
    once = HeldOnce(first=first.name, second=last.name, state_bytes=last.state_bytes, stash_bytes=last.stash_bytes)
    measured = replace(profile, held_once=(once,))
    held = make_audited_problem(run, gpu="h100", measured=measured).problem.profile.held_once
    assert sum(each.state_bytes for each in held) == state * last.state_bytes
    assert sum(each.stash_bytes for each in held) == stash * last.stash_bytes


def test_a_program_that_always_recomputes_keeps_nothing_twice() -> None:
    """Tests that torchtitan's recomputed layers, whose checkpoints are their stashes, share none."""
    question = AuditQuestion(program="torchtitan", model="llama3-8b", devices=2, pp=2, seq_length=2048, tp=1)
    run = replace(read_configuration(question), recompute=Recomputation())
    rates = [default_rates_of("h100_sxm")]
    profile, _ = compose(
        CompositionQuestion(shape=run.shape, rates=rates, sizes=(run.micro_batch,), degrees=(1,), **settings_of(run))
    )
    _, first, second, *_ = profile.layers
    once = HeldOnce(first=first.name, second=second.name, stash_bytes=second.checkpoint_bytes)
    audited = make_audited_problem(run, gpu="h100", measured=replace(profile, held_once=(once,)))
    assert [each.stash_bytes for each in audited.problem.profile.held_once] == [0]


@pytest.mark.parametrize(("more", "held"), [({}, 4), ({"grad_reduce_in_bf16": True}, 2)])
def test_gradients_are_held_as_they_add_up(more: dict[str, Any], held: int) -> None:
    """Tests that each weight takes two bytes less where gradients add up in bf16."""
    flags = {"tensor_model_parallel_size": "1", "pipeline_model_parallel_size": "1", **more}
    run = read_megatron(ReadArguments(values={}, kind="options"), options=flags, model="llama3-8b")
    layer = make_audited_problem(run, gpu="h100").problem.profile.layers[1]
    weights = layer.parameter_bytes // 2
    assert (layer.gradient_bytes, layer.state_bytes) == (held * weights, (14 + held) * weights)
