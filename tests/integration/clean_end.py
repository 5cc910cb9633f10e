"""What a run says that ended as it should: nothing of C++ and no traceback, whoever started it."""

import re

NATIVE_TRACE = re.compile(r"frame #\d+|Exception raised from|terminate called|CapturedTraceback|Traceback")


def require_clean_end(code: int, said: str) -> None:
    """`said`: its standard error, or its log."""
    assert code == 0, said
    assert not NATIVE_TRACE.search(said), said
