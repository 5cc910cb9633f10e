"""Tests of profiles/configurations/megatron_startup.py: what Megatron-LM's own argument checks said of each command."""

import pytest

from profiles.configurations.flag_meanings import FORKS, STARTUP
from tests.profiles.configurations.test_megatron_run import run_of

WHOLE = (
    "--num-layers 8 --hidden-size 64 --num-attention-heads 4 --vocab-size 128 --seq-length 32 "
    "--max-position-embeddings 32 --micro-batch-size 1"
)


def refusals_of(flags: str, *, before: str = "", model: str | None = None) -> list[str]:
    return run_of(f"{before}torchrun --nproc-per-node 8 pretrain_gpt.py {flags}", model=model).notes.refusals


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("--bf16 true", "--bf16 'true': is a switch, and the parser takes no value; leave the value out"),
        ("--fp8-format e5m2", "asks for --fp8-format e4m3 or --fp8-format hybrid beside"),
        ("--recompute-granularity none", "asks for --recompute-granularity full or --recompute-granularity selective"),
        ("--squared-relu", "asks for --disable-bias-linear or --no-bias-gelu-fusion or --swiglu beside"),
        ("--bf16=False", "--bf16 'False': is a switch"),
        ("--seq-length 64", "--max-position-embeddings 32 is less than --seq-length 64; give 64 or more"),
        (
            "--num-attention-heads 12 --kv-channels 8 --group-query-attention --num-query-groups 3 "
            "--tensor-model-parallel-size 2 --world-size 2",
            "--num-query-groups 3 is neither a multiple nor a divisor of --tensor-model-parallel-size 2; "
            "use another number",
        ),
        ("--num-attention-heads 3", "--hidden-size 64 is no multiple of --num-attention-heads 3; give --kv-channels"),
        ("--recompute-granularity full --recompute-method uniform", "asks for --recompute-num-layers beside; change"),
        ("--recompute-activations --recompute-method block", "asks for no --recompute-method beside"),
        ("--overlap-param-gather --use-distributed-optimizer", "asks for --overlap-grad-reduce beside"),
        ("--main-grads-dtype bf16", "asks for --main-grads-dtype fp32 or --use-precision-aware-optimizer beside"),
        ("--tp-comm-overlap --sequence-parallel", "asks for --tensor-model-parallel-size above 1 beside"),
        (
            "--tensor-model-parallel-size 2 --num-experts 4 --disable-bias-linear",
            "--num-experts above 0: asks for --sequence-parallel",
        ),
        ("--mtp-num-layers 1", "asks for --position-embedding-type rope or --position-embedding-type none beside"),
        ("--delay-wgrad-compute", "asks for --overlap-moe-expert-parallel-comm beside"),
        ("--moe-router-group-topk 1 --num-experts 4", "--moe-router-group-topk: asks for --moe-router-num-groups"),
        ("--moe-router-group-topk 1 --moe-router-num-groups 2", "asks for --num-experts above 0 beside"),
        ("--cp-comm-type a2a+p2p", "asks for --hierarchical-context-parallel-sizes beside"),
        (
            "--context-parallel-size 8 --hierarchical-context-parallel-sizes 2 2 --world-size 8",
            "--hierarchical-context-parallel-sizes 2 2: their product is not --context-parallel-size 8; make them",
        ),
        ("--num-experts 4 --moe-router-topk 1", "--moe-router-topk 1: asks for --moe-router-pre-softmax or"),
        (
            "--cpu-offloading-num-layers 2 --pipeline-model-parallel-size 2",
            "asks for no --pipeline-model-parallel-size",
        ),
        ("--overlap-p2p-communication-warmup-flush", "asks for --num-layers-per-virtual-pipeline-stage or"),
        (
            "--num-experts 4 --expert-model-parallel-size 4 --bf16 --overlap-moe-expert-parallel-comm",
            "asks for --moe-token-dispatcher-type alltoall or --moe-token-dispatcher-type flex beside",
        ),
        (
            "--num-experts 4 --tensor-model-parallel-size 2 --sequence-parallel",
            "and no --expert-tensor-parallel-size: asks for --disable-bias-linear beside",
        ),
    ],
)
def test_commands_that_end_at_once(flags: str, told: str) -> None:
    """Tests that a command which Megatron-LM refuses does not start, for its own reason alone, with a remedy."""
    (found,) = refusals_of(f"{WHOLE} {flags}")
    assert told in found


@pytest.mark.parametrize(
    "flags",
    [
        "--bf16 --kv-channels 16 --num-attention-heads 3",
        "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
        "--overlap-param-gather --use-distributed-optimizer --overlap-grad-reduce --main-grads-dtype fp32",
        "--tensor-model-parallel-size 2 --num-experts 4 --sequence-parallel --tp-comm-overlap --disable-bias-linear",
        "--num-experts 4 --expert-model-parallel-size 4 --moe-token-dispatcher-type alltoall --bf16 "
        "--overlap-moe-expert-parallel-comm --delay-wgrad-compute",
        "--moe-router-num-groups 2",
        "--context-parallel-size 8 --cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 2 4 --world-size 8",
        "--moe-router-group-topk 1 --moe-router-num-groups 2 --num-experts 4",
        "--mtp-num-layers 1 --position-embedding-type rope --override-opt_param-scheduler",
    ],
)
def test_commands_that_start(flags: str) -> None:
    """Tests that what Megatron-LM takes is not refused, nor called a fork's."""
    run = run_of(f"python pretrain_gpt.py {WHOLE} {flags}")
    assert not run.notes.refusals
    assert "fork" not in " ".join(run.notes.assumed)


@pytest.mark.parametrize("name", ["micro-batch-size 1", "seq-length 32", "max-position-embeddings 32"])
def test_flags_without_a_default(name: str) -> None:
    """Tests that a whole command needs them, and one beside a model, or with flags from elsewhere, does not."""
    flags = WHOLE.replace(f"--{name}", "")
    assert refusals_of(flags) == [f"--{name.split()[0]}: is not there, and has no default; give it"]
    assert not refusals_of(f"{flags} $MORE_ARGS")
    assert not refusals_of(f"{flags} --use-checkpoint-args")
    assert not refusals_of("--bf16", model="llama3-8b")


@pytest.mark.parametrize(
    ("flags", "told"),
    [("--num_workers 2 --bf16 true", "--num_workers"), ("--batch-size 4 --zero-stage 1", "--batch-size, --zero-stage")],
)
def test_forks(flags: str, told: str) -> None:
    """Tests that names which forks alone take are told, and nothing is said of what a fork checks."""
    run = run_of(f"torchrun pretrain_gpt.py {WHOLE} {flags}")
    assert f"a fork or an old release of Megatron-LM: 0.19 does not start with {told}" in run.notes.assumed
    assert not run.notes.refusals


def test_shorter_names_of_forks() -> None:
    """Tests that a fork's name that begins as a known one is told as unknown, but a slip or a degree is refused."""
    command = f"torchrun pretrain_gpt.py {WHOLE} --num-experts 4 --expert-model-parallel"
    with pytest.raises(ValueError, match="argparse takes it for --expert-model-parallel-size; write it whole"):
        run_of(command)
    assert "--expert-model-parallel" in run_of(f"{command} --zero-stage 1").notes.unknown
    for flags, told in {" --recompute-granularty full": "write --recompute-granularity", " 2": "is a degree"}.items():
        with pytest.raises(ValueError, match=told):
            run_of(f"{command}{flags} --zero-stage 1")


def test_rules_are_of_names_that_are_read() -> None:
    """Tests that no rule speaks of a fork's flag, so that each can be met."""
    names = {term.strip("!").partition("=")[0].partition(">")[0] for rule in STARTUP for term in (*rule[0], *rule[1])}
    assert not names & FORKS
