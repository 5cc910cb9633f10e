"""What fails in the user's own code is called so: tests of planner/execute/model/user_code.py."""

import pytest

from planner.errors import ExecutionError
from planner.execute.model.user_code import OwnCodeError, calling


def fail(error: BaseException) -> None:
    """The user's own line."""
    raise error


def test_the_line_is_named():
    """Tests that what was called, the error, its first line and the place are told, and the cause is kept."""
    words = r"^the loss raised KeyError: 'x' \(test_user_code.py, line \d+\)$"
    with pytest.raises(OwnCodeError, match=words) as told, calling("the loss"):
        fail(KeyError("x"))
    assert isinstance(told.value.__cause__, KeyError)
    with pytest.raises(OwnCodeError, match=r"raised ValueError: one \("), calling("it"):
        fail(ValueError("one\ntwo"))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ExecutionError("ours"), OwnCodeError("told")])
def test_what_is_not_theirs_passes(error: BaseException):
    """Tests that Ctrl+C, our own errors, and what was told already stay what they are."""
    with pytest.raises(type(error)) as passed, calling("the loss"):
        fail(error)
    assert passed.value is error
