"""Megatron's logs as launchers hand them on: orders of ranks, batches that grow, and what stands before the lines."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from profiles.importers.megatron_timers import MegatronTimers, read_megatron_timers


def log(
    *,
    stages: Sequence[int] = (0, 0, 1, 1),
    batches: Sequence[int] = (16, 16),
    number: int = 0,
    samples: int = 0,
    ends: bool = True,
    **told: object,
) -> str:
    """Ten iterations an interval; a forward takes 10 ms in the first stage and 20 ms more in each later one, a backward
    twice as long. `batches`: of every interval; `number`, `samples`: those done before; `ends`: whether lines state
    them.
    """
    depth, size = max(stages) + 1, len(stages)
    sizes: dict[str, object] = {
        "data_parallel_size": 2,
        "global_batch_size": 16,
        "micro_batch_size": 2,
        "pipeline_model_parallel_size": depth,
        "world_size": size,
    }
    lines = [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in (sizes | told).items()]
    for batch in batches:
        number, samples = number + 10, samples + 10 * batch
        counted = f" consumed samples: {samples:12d} |" if ends else ""
        lines.append(
            f" [2026-03-01 10:00:00] iteration {number:8d}/     500 |{counted} elapsed time per iteration (ms): "
            f"{50.0 * batch:.1f} | global batch size: {batch:5d} | lm loss: 9.0E+00 |"
        )
        lines.append("times across ranks (ms):")
        for name, factor in (("forward-backward", 9), ("forward-compute", 1), ("backward-compute", 2)):
            lines.append(f"  {name}:")
            lines += [
                f"     rank {rank:2d}: {factor * (10 + 20 * stage) * batch / 4:.2f}"
                for rank, stage in enumerate(stages)
            ]
    return "\n".join(lines) + "\n"


def read(tmp_path: Path, text: str) -> MegatronTimers:
    path = tmp_path / "train.log"
    path.write_text(text)
    return read_megatron_timers(path)


def stage_times(timers: MegatronTimers) -> dict[tuple[int, str], set[float]]:
    """Milliseconds of every stage's actions."""
    found: dict[tuple[int, str], set[float]] = {}
    for rank, kind, duration_ns in timers.actions:
        found.setdefault((timers.stage(rank), kind), set()).add(duration_ns / 1e6)
    return found


TWO_STAGES = {(0, "F"): {10.0}, (0, "B"): {20.0}, (1, "F"): {30.0}, (1, "B"): {60.0}}


@pytest.mark.parametrize(
    ("stages", "told"),
    [
        pytest.param((0, 0, 1, 1), {"use_tp_pp_dp_mapping": False}, id="stages outermost"),
        pytest.param((0, 1, 0, 1), {"use_tp_pp_dp_mapping": True}, id="pipelines outermost"),
        pytest.param((0, 0, 1, 1, 0, 0, 1, 1), {"use_tp_pp_dp_mapping": True}, id="and two tensor ranks"),
        pytest.param((0, 0, 0, 0, 1, 1, 1, 1), {}, id="stages outermost, two tensor ranks"),
        pytest.param(
            (0,) * 4 + (1,) * 4 + (0,) * 4 + (1,) * 4, {"use_tp_pp_dp_mapping": True}, id="four ranks a stage"
        ),
    ],
)
def test_ranks_have_the_stages_that_megatron_gives_them(tmp_path: Path, stages, told):
    """Tests that the order of ranks is the one that the log's arguments state, whatever lies within a stage."""
    timers = read(tmp_path, log(stages=stages, **told))
    assert stage_times(timers) == TWO_STAGES
    assert [timers.stage(rank) for rank in range(len(stages))] == list(stages)


def test_three_stages_inside_two_pipelines(tmp_path: Path):
    """Tests that three stages of pipelines that are numbered one after the other are told apart."""
    timers = read(tmp_path, log(stages=(0, 1, 2, 0, 1, 2), use_tp_pp_dp_mapping=True))
    assert {stage: times for (stage, kind), times in stage_times(timers).items() if kind == "F"} == {
        0: {10.0},
        1: {30.0},
        2: {50.0},
    }


@pytest.mark.parametrize(
    ("text", "microbatches", "iterations"),
    [
        pytest.param(log(batches=(8, 8, 16), rampup_batch_size="['8', '8', '200']"), 4, 1, id="doubled"),
        pytest.param(log(batches=(4, 8, 12, 16, 16), rampup_batch_size="[4, 4, 900]"), 4, 2, id="four steps"),
        pytest.param(log(batches=(8, 8), rampup_batch_size="['8', '8', '9000']"), 2, 2, id="never full"),
        pytest.param(
            log(batches=(8, 16), number=700, samples=9_000, rampup_batch_size="[8, 8, 9]"), 4, 1, id="resumed"
        ),
        pytest.param(log(batches=(8, 16), ends=False, rampup_batch_size="[8, 8, 9]"), 4, 1, id="no counters"),
        pytest.param(log(batches=(16, 32), step_batch_size_schedule="0:16 160:32"), 8, 1, id="another schedule"),
    ],
)
def test_every_interval_has_its_own_microbatches(tmp_path: Path, text: str, microbatches: int, iterations: int):
    """Tests that actions take the same time in all intervals of a batch that grows, and that iterations of another size
    are not mixed with the last ones.
    """
    timers = read(tmp_path, text)
    assert stage_times(timers) == TWO_STAGES
    assert (timers.num_microbatches, len(timers.iterations_ns)) == (microbatches, iterations)
    assert set(timers.iterations_ns) == {round(50e6 * 4 * microbatches)}


def test_a_batch_that_grows_within_an_interval_counts_by_samples(tmp_path: Path):
    """Tests that of ten iterations, half of them with half the batch, the mean number of microbatches is used."""
    text = log(batches=(12, 16, 16), rampup_batch_size="[8, 8, 80]")
    timers = read(tmp_path, text.replace("global batch size:    12", "global batch size:    16"))
    assert stage_times(timers) == TWO_STAGES
    assert (timers.num_microbatches, len(timers.iterations_ns)) == (4, 2)


def each_line(before: str) -> Callable[[str], str]:
    return lambda text: "".join(f"{before}{line}\n" for line in text.splitlines())


def in_json(field: str) -> Callable[[str], str]:
    """Every line in one of JSON, as containers' logs keep them."""
    return lambda text: "".join(
        json.dumps({field: f"{line}\n", "stream": "stdout", "time": "2026-03-01T10:00:00Z"}) + "\n"
        for line in text.splitlines()
    )


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(each_line("[2026-03-01 10:00:00] "), id="stamp"),
        pytest.param(each_line("2026-03-01T10:00:00.123456Z "), id="ISO stamp"),
        pytest.param(each_line("2026-03-01T10:00:00+01:00: "), id="ISO stamp with a zone and a colon"),
        pytest.param(each_line("[pod/train-0/rank] 2026-03-01T10:00:00Z "), id="kubectl's prefix and stamp"),
        pytest.param(each_line("3: [default3]:"), id="Slurm's and torchrun's labels"),
        pytest.param(each_line("\x1b[36m(Worker pid=7, ip=10.0.0.1)\x1b[0m "), id="Ray's, in colour"),
        pytest.param(each_line("node-1 | INFO:megatron.core.timers: "), id="compose's and logging's"),
        pytest.param(lambda text: text.replace("\n", "\r\n"), id="ends of DOS"),
        pytest.param(each_line("> "), id="quoted"),
        pytest.param(in_json("log"), id="Docker's JSON"),
        pytest.param(in_json("message"), id="a collector's JSON"),
    ],
)
def test_what_stands_before_the_lines_is_passed_over(tmp_path: Path, change: Callable[[str], str]):
    """Tests that labels and stamps, one or two of them, change nothing."""
    timers = read(tmp_path, change(log(stages=(0, 1, 0, 1), use_tp_pp_dp_mapping=True)))
    assert stage_times(timers) == TWO_STAGES
    assert timers.iterations_ns == [800_000_000] * 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (log() + log(global_batch_size=32), "global_batch_size is 16, then 32: two runs; give the log of one"),
        (log(world_size=6), "is not a multiple of pipeline_model_parallel_size times data_parallel_size = 4"),
        (
            log(ends=False, rampup_batch_size="[8, 8, 9]").replace("global batch size", "batch"),
            "iteration 10 does not state its global batch size",
        ),
        (log().replace("times across", "max time across").replace("     rank", "    it"), "forward-compute of 0 ranks"),
    ],
)
def test_what_a_log_leaves_open_is_refused(tmp_path: Path, text: str, message: str):
    """Tests that two runs in one log, sizes that contradict each other and unknown batches are refused by name."""
    with pytest.raises(ValueError, match=message):
        read(tmp_path, text)


def test_logs_of_several_stages_per_rank_are_refused(tmp_path: Path):
    """Tests that timers which add up the stages of a rank are not taken for one stage's."""
    assert read(tmp_path, log(virtual_pipeline_model_parallel_size=None)).num_microbatches == 4
    with pytest.raises(ValueError, match="virtual_pipeline_model_parallel_size = 2: a rank's timers add up its stages"):
        read(tmp_path, log(virtual_pipeline_model_parallel_size=2))
