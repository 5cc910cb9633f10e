"""The ablation: what is planned, how pairs are compared, and which parts stay."""

from pathlib import Path

import pytest

from benchmarks.ablation import Record, by_key, gain, interval, questions, row_of, rows_of
from benchmarks.records import Records

PART = "order search"


def record(objective: float | None, **fields: object) -> Record:
    known = {"workload": "w", "seed": 0, "part": "", "bound": 50.0, "is_proved": False, "parts": [PART]}
    return Record(objective=objective, **known | fields)


def pairs(*without: float, workloads: int = 1, **fields: object) -> list[tuple[Record, Record]]:
    """Plans of 100 with the part, and those without it, seed by seed."""
    return [
        (record(100, workload=f"w{number}", seed=seed), record(each, workload=f"w{number}", seed=seed, **fields))
        for number in range(workloads)
        for seed, each in enumerate(without)
    ]


@pytest.mark.slow
def test_there_are_enough_workloads():
    """Tests that at least 30 workloads are planned by default, each with a name of its own."""
    names = [name for name, _ in questions([])]
    assert len(set(names)) == len(names) >= 30


def test_plans_are_compared():
    """Tests that a gain is relative to the whole search, and that finding a plan at all is worth everything."""
    assert gain(record(100), record(103)) == pytest.approx(0.03)
    assert gain(record(100), record(None)) == 1
    assert gain(record(None), record(100)) == -1
    assert gain(record(None), record(None)) == 0


def test_the_interval_is_around_the_mean():
    """Tests that equal gains have no spread, and that others lie on both sides of their mean."""
    assert interval([0.02] * 9) == (0.02, 0.02)
    low, high = interval([0.0, 0.01, 0.02, 0.03])
    assert 0 <= low < 0.015 < high <= 0.03


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (pairs(101, 101, workloads=2), "stays"),
        (pairs(100, 100, workloads=2), "goes"),
        (pairs(99, 100, workloads=2), "goes"),
        ([*pairs(100, workloads=8), (record(100, workload="x"), record(140, workload="x"))], "undecided: give it 60 s"),
        (pairs(100, bound=49.0), "stays"),
        (pairs(100, bound=49.99), "goes"),
    ],
)
def test_parts_stay_for_what_they_are_worth(found: list[tuple[Record, Record]], verdict: str):
    """Tests that a part stays for a gain above 0 or a bound that nothing else gives, and goes otherwise."""
    assert row_of(PART, found)[-1] == verdict


def test_records_are_read_again(tmp_path: Path):
    """Tests that what was written is known again, and compared with the whole search of the same seed."""
    path = tmp_path / "records.jsonl"
    known = [record(100), record(103, part=PART, parts=[])]
    records = Records(path, Record)
    assert not records
    for each in known:
        records.add(each)
    with path.open("a", encoding="utf-8") as file:
        file.write('{"workload": "ended wi')
    found = Records(path, Record)
    assert found == known == Records(path, Record)
    (row,) = rows_of(by_key(found))
    assert row[:3] == [PART, "1", "3.00 %"]
