"""The published bubbles of the zero-bubble settings, from our simulator."""

from pathlib import Path

import pytest

from benchmarks.zero_bubble import (
    MAKESPAN_ROWS,
    METHOD_COLUMNS,
    SPAN_ROWS,
    Setting,
    make_problem,
    makespan_line,
    play,
    span_bubble,
    span_line,
)

ROOT = Path(__file__).resolve().parents[4]
FIGURES = ROOT / "tests" / "golden" / "zero-bubble-figures.txt"


def name(setting: Setting) -> str:
    return f"{setting.model}-p{setting.num_devices}-m{setting.num_microbatches}-c{setting.transfer_us}"


def digits(bubble: float) -> str:
    return f"{bubble:.4f}"[1:]


@pytest.mark.parametrize(
    ("setting", "published"), SPAN_ROWS, ids=lambda value: name(value) if isinstance(value, Setting) else ""
)
def test_1f1b_to_four_digits(setting: Setting, published: tuple[str, ...]):
    """Tests that 1F1B has exactly the published bubble, by span, in all twelve settings."""
    assert digits(span_bubble(setting, play(make_problem(setting), "1F1B"))) == published[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "published"),
    [row for row in MAKESPAN_ROWS if row[0].num_devices < 32],
    ids=lambda value: name(value) if isinstance(value, Setting) else "",
)
def test_no_baseline_is_weaker_than_published(setting: Setting, published: tuple[str, ...]):
    """Tests that under the barrier every method of ours has at most the published bubble, in the published memory."""
    for (_, method, limit), theirs in zip(METHOD_COLUMNS, published, strict=True):
        problem = make_problem(setting, limit=limit)
        timeline = play(problem, method)
        assert float(digits(timeline.bubble)) <= float(theirs), method
        for device in problem.cluster.devices:
            assert timeline.peak_bytes[device.name] <= device.memory_bytes, method


def test_document_holds_the_figures():
    """Tests that rows with eight devices and 24 microbatches stand in the table as the benchmark prints them."""
    text = FIGURES.read_text(encoding="utf-8")
    for setting, published in SPAN_ROWS:
        if setting.num_devices == 8 and setting.num_microbatches == 24:
            assert span_line(setting, published) in text
    for setting, published in MAKESPAN_ROWS:
        if setting.num_devices == 8 and setting.num_microbatches == 24:
            assert makespan_line(setting, published) in text
