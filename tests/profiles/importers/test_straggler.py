"""Production traces as parquet: read, refused when broken, and replayed under the contract."""

import statistics
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from planner.fidelity.run_replay import replay_ns
from profiles.importers.straggler import read_straggler_trace

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

TRACES = Path(__file__).parents[3] / "benchmarks" / "traces"


def write(path: Path, *operations: tuple[object, ...]) -> Path:
    """Operations as (pipeline, stage, optype, start, duration, microbatch, count) of step 7."""
    from pyarrow import parquet

    names = ("dp_rank", "stage", "optype", "start_ts", "duration", "mb_id", "seq_id")
    columns = {name: [operation[i] for operation in operations] for i, name in enumerate(names)}
    parquet.write_table(pyarrow.table(columns | {"step": [7] * len(operations)}), path)
    return path


TWO_STAGES = (
    (0, 0, "forward-compute", 0.0, 1.0, 0, 0),
    (0, 0, "forward-send", 1.0, 0.5, -1, 0),
    (0, 1, "forward-recv", 0.0, 1.5, -1, 0),
    (0, 1, "forward-compute", 1.5, 2.0, 0, 0),
    (0, 1, "backward-compute", 3.5, 2.0, 0, 0),
    (0, 1, "backward-send", 5.5, 0.25, -1, 0),
    (0, 0, "backward-recv", 1.5, 4.25, -1, 0),
    (0, 0, "backward-compute", 5.75, 1.0, 0, 0),
    (0, 0, "optimizer", 6.75, 9.0, -1, -1),
)

LONG = "x" * 1_000_000

COLUMNS: dict[str, tuple[str, Any, str]] = {
    "a list of texts": ("optype", pyarrow.array([["forward-compute"]] * 9), "optype' has values of type list"),
    "numbers for names": ("optype", pyarrow.array([7] * 9), "optype' has values of type int64; give texts"),
    "texts for numbers": ("start_ts", pyarrow.array(["soon"] * 9), "start_ts' has values of type string; give numbers"),
    "bytes of any length": ("step", pyarrow.array([b"x"] * 9), "step' has values of type binary; give numbers"),
    "pairs": ("stage", pyarrow.array([{"a": 1}] * 9), "stage' has values of type struct"),
}


@pytest.mark.parametrize("what", COLUMNS)
def test_columns_of_other_values_are_named(tmp_path: Path, what: str):
    """Tests that a column whose values have no size that the footer states is refused before it is read."""
    name, column, words = COLUMNS[what]
    table = parquet.read_table(write(tmp_path / "t.parquet", *TWO_STAGES))
    parquet.write_table(table.set_column(table.schema.names.index(name), name, column), tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=words):
        read_straggler_trace(tmp_path / "t.parquet")


def test_a_name_that_many_rows_refer_to_is_held_once(tmp_path: Path):
    """Tests that a text of a megabyte on 200,000 rows takes a few megabytes, and categories are read as texts."""
    plain = parquet.read_table(write(tmp_path / "t.parquet", *TWO_STAGES))
    names = pyarrow.DictionaryArray.from_arrays([0, 0] + [1] * 200_000, ["forward-compute", LONG])
    table = plain.take([0] * 200_002).set_column(plain.schema.names.index("optype"), "optype", names)
    parquet.write_table(table, tmp_path / "t.parquet")
    tracemalloc.start()
    with pytest.raises(ValueError, match="other microbatches"):
        read_straggler_trace(tmp_path / "t.parquet")
    assert tracemalloc.get_traced_memory()[1] < 60 * len(LONG)
    tracemalloc.stop()


TWO_STAGES_LATER = tuple((*row[:3], row[3] + 1, *row[4:]) for row in TWO_STAGES)
"""No time of a stage is below 0 on a clock that is a little behind."""


def test_a_trace_is_read_and_replayed(tmp_path: Path):
    """Tests that a transfer takes from when both ends are ready, and that the replay of two stages is exact."""
    (step,) = read_straggler_trace(write(tmp_path / "t.parquet", *TWO_STAGES))
    assert (step.number, step.measured_ns) == (7, 6_750_000_000)
    assert step.transfers_ns == {(0, 0, "F", 0): 500_000_000, (0, 1, "B", 0): 250_000_000}
    assert replay_ns(step) == step.measured_ns
    assert replay_ns(step, durations_ns={(0, 1, "F", 0): 1_000_000_000}) == step.measured_ns - 1_000_000_000


@pytest.mark.parametrize("job", ["ST", "SE"])
def test_production_steps_are_replayed(job: str):
    """Tests that the replay of every step of both jobs is within 2 % of the measured one, the median within 0.5 %."""
    steps = read_straggler_trace(TRACES / f"trace-{job}.parquet")
    errors = [abs(replay_ns(step) / step.measured_ns - 1) for step in steps]
    assert len(steps) == {"ST": 32, "SE": 43}[job]
    assert statistics.median(errors) <= 0.005
    assert max(errors) <= 0.02


@pytest.mark.parametrize(
    ("operations", "message"),
    [
        (TWO_STAGES[:4] + TWO_STAGES[5:], "stage 1 ran other microbatches"),
        (((0, 0, "forward-compute", -5.0, 1.0, 0, 0),), "give seconds since the step"),
        (((0, 0, "forward-compute", 0.0, float("nan"), 0, 0),), "give seconds since the step"),
        (((0, 0, "forward-compute", None, 1.0, 0, 0), *TWO_STAGES), "an operation without 'start_ts'"),
        (
            (*TWO_STAGES[:3], (0, 1, "forward-compute", 0.5, 1.0, 0, 0), *TWO_STAGES[4:]),
            "starts 500.0 ms before stage 0 has made its input",
        ),
        (((0, 0, "optimizer", 0.0, 1.0, -1, -1),), "contains no operations"),
        (tuple(row for row in TWO_STAGES if row[1] == 0), "others exchange with stage 1, which ran nothing"),
        (tuple(row for row in TWO_STAGES if row[1] == 1), "others exchange with stage 0, which ran nothing"),
    ],
)
def test_broken_traces_are_refused(tmp_path: Path, operations: tuple[tuple[object, ...], ...], message: str):
    """Tests that what is cut off, skewed, empty or without its last or first stage is refused with one message."""
    with pytest.raises(ValueError, match=message):
        read_straggler_trace(write(tmp_path / "t.parquet", *operations))


@pytest.mark.parametrize(
    ("ahead", "message"),
    [
        (0.5, "a backward of stage 0 starts 250.0 ms before stage 1 has made its input"),
        (-0.6, "a forward of stage 1 starts 100.0 ms before stage 0 has made its input"),
        (0.255, None),
        (-0.505, None),
    ],
)
def test_a_clock_ahead_or_behind_is_refused(tmp_path: Path, ahead: float, message: str | None):
    """Tests that one stage's clock may be ahead or behind by what transfers take and the slack, and by no more."""
    shifted = (row if row[1] == 0 else (*row[:3], row[3] + ahead, *row[4:]) for row in TWO_STAGES_LATER)
    path = write(tmp_path / "t.parquet", *shifted)
    if message is None:
        assert read_straggler_trace(path)
    else:
        with pytest.raises(ValueError, match=message):
            read_straggler_trace(path)


def test_a_message_before_its_sending_is_refused(tmp_path: Path):
    """Tests that a clock is refused that only messages contradict: the action that uses one comes much later."""
    rows = [(*row[:3], 1.5 + row[3] if row[1] == 1 else row[3], *row[4:]) for row in TWO_STAGES[:4]]
    rows[2] = (0, 1, "forward-recv", 0.0, 0.9, -1, 0)
    rows += [(0, 1, "backward-compute", 6.0, 1.0, 0, 0), (0, 0, "backward-compute", 8.0, 1.0, 0, 0)]
    with pytest.raises(ValueError, match="what stage 0 sends arrives 100"):
        read_straggler_trace(write(tmp_path / "t.parquet", *rows))


def test_truncated_files_are_refused(tmp_path: Path):
    """Tests that half a file, an empty one, a missing one and one without the columns are refused by name."""
    from pyarrow import parquet

    whole = write(tmp_path / "t.parquet", *TWO_STAGES).read_bytes()
    (tmp_path / "half.parquet").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty.parquet").write_bytes(b"")
    parquet.write_table(pyarrow.table({"step": [1]}), tmp_path / "other.parquet")
    for name, message in (
        ("half", "cannot be read as parquet"),
        ("empty", "cannot be read as parquet"),
        ("missing", "cannot be read as parquet"),
        ("other", "has no column 'dp_rank'"),
    ):
        with pytest.raises(ValueError, match=message):
            read_straggler_trace(tmp_path / f"{name}.parquet")


ODD = {"half": 0.5, "nan": float("nan"), "negative": -1.0, "infinite": float("inf")}


@pytest.mark.parametrize("column", ["dp_rank", "stage", "step", "mb_id"])
@pytest.mark.parametrize("what", ODD)
def test_numbers_that_are_not_whole_are_refused(tmp_path: Path, column: str, what: str):
    """Tests that a pipeline, stage, step or microbatch that is no whole number from 0 is refused, not counted."""
    table = parquet.read_table(write(tmp_path / "t.parquet", *TWO_STAGES))
    place = table.schema.names.index(column)
    parquet.write_table(table.set_column(place, column, pyarrow.array([ODD[what]] * 9)), tmp_path / "t.parquet")
    with pytest.raises(ValueError, match="give whole numbers from 0"):
        read_straggler_trace(tmp_path / "t.parquet")


def test_whole_numbers_may_be_floats(tmp_path: Path):
    """Tests that columns of floats, as pandas writes those with gaps, give the same step."""
    table = parquet.read_table(write(tmp_path / "t.parquet", *TWO_STAGES))
    plain = read_straggler_trace(tmp_path / "t.parquet")
    for column in ("dp_rank", "stage", "step", "mb_id", "seq_id"):
        place = table.schema.names.index(column)
        table = table.set_column(place, column, table.column(column).cast(pyarrow.float64()))
    parquet.write_table(table, tmp_path / "t.parquet")
    assert repr(read_straggler_trace(tmp_path / "t.parquet")) == repr(plain)
