"""A measured workload with its run beside it: how both are drawn, and what is stated of them."""

from xml.etree import ElementTree

from api.tuning.short_run import ShortRun
from benchmarks.measured_demo import choose_run, describe_sample, draw_pair, draw_row
from benchmarks.timeline_picture import COLOURS, draw_timelines, tick_ms
from planner.actions import Action
from planner.simulation.timeline import TimedAction
from tests.api.worlds import make_workload


def test_a_device_is_drawn_over_time():
    """Tests that each column shows what runs in its middle, idle time as dots, and a second stage in lower case."""
    actions = [
        TimedAction(Action("F", 0, 0), 0, 40),
        TimedAction(Action("F", 2, 0), 40, 50),
        TimedAction(Action("B", 0, 0), 70, 100),
    ]
    assert draw_row(actions, end_ns=100, columns=10) == "FFFFf..BBB"
    assert draw_row([], end_ns=100, columns=4) == "...."


def test_both_are_on_one_scale():
    """Tests that a run that takes twice as long fills its row, and the prediction half of its own."""
    planned = {"d0": [TimedAction(Action("F", 0, 0), 0, 50)]}
    run = {"d0": [TimedAction(Action("F", 0, 0), 0, 100)]}
    rows = [line.split()[-1] for line in draw_pair(planned, run, columns=4).splitlines()]
    assert rows == ["FF..", "FFFF"]


def test_the_median_run_is_kept():
    """Tests that of three runs the middle one is kept, and of two the faster."""
    runs = [ShortRun(folder=str(time), durations_ns=(time, time), wall_s=1.0) for time in (30, 10, 20)]
    assert choose_run(runs).folder == "20"
    assert choose_run(runs[:2]).folder == "10"


def test_a_demos_figures_are_stated():
    """Tests that counts and sums are those that the table of the demos' tests wants."""
    text = describe_sample(make_workload(), name="toy")
    assert text == f'{{"toy": [4, 3, 2, 3, 5000000, 10000000, 5000000, {4 * 2**28}, {4 * 2**29}]}}'


def test_the_picture_is_to_scale():
    """Tests that a run that takes twice as long is twice as wide, each kind in its colour, names escaped."""
    planned = {"d<0": [TimedAction(Action("F", 0, 0), 0, 50_000_000)]}
    run = {"d<0": [TimedAction(Action("F", 0, 0), 0, 100_000_000)]}
    root = ElementTree.fromstring(draw_timelines(planned, run))
    tag = "{http://www.w3.org/2000/svg}"
    short, long = (each for each in root.iter(f"{tag}rect") if each.find(f"{tag}title") is not None)
    assert {short.get("fill"), long.get("fill")} == {COLOURS["F"]}
    assert abs(float(long.get("width", 0)) / float(short.get("width", 1)) - 2) < 0.01
    assert "d<0 planned" in [each.text for each in root.iter(f"{tag}text")]


def test_marks_are_round_numbers():
    """Tests that the axis has at most eight marks, at 1, 2 or 5 times a power of ten."""
    assert [tick_ms(end * 1_000_000) for end in (4, 90, 371)] == [0.5, 20.0, 50.0]
