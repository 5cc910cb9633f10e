"""Whether there is time left: tests of planner/clock.py."""

from planner.clock import while_time
from tests.planner.planning.test_search_state import asked


def test_items_are_made_while_there_is_time():
    """Tests that nothing is made after time is over, and all of it if it never is."""
    made: list[int] = []
    items = (made.append(number) or number for number in range(10))  # type: ignore[func-returns-value]
    assert list(while_time(items, has_time=asked(3))) == [0, 1, 2] == made
    assert list(while_time(range(4), has_time=lambda: True)) == [0, 1, 2, 3]
