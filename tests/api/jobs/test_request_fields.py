"""Bodies that schemathesis found, and others of their kinds: the interface's document and the program agree on each."""

from api.jobs.request import parse_tree


def test_whole_numbers_stay_exact():
    """Tests that a number written with a point or an exponent is an integer only where it is whole, and exactly it."""
    written = "[6.0, 6e0, 1.5e1, -0.0, 12345678901234567.0, 1e17, 1e18, 0.5, 1e-400, 2.50]"
    read = parse_tree(f'{{"a": {written}}}'.encode())["a"]
    assert read == [6, 6, 15, 0, 12345678901234567, 10**17, 1e18, 0.5, 0.0, 2.5]
    assert [type(each) for each in read] == [int] * 6 + [float] * 4
