"""Processes as forks of this one."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def fork(call: Callable[[], Any], log: Path) -> int:
    """The process that makes the call in a copy of this one, and writes what it says to the log."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), 1)
        os.dup2(1, 2)
        call()
        code = 0
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    except BaseException as error:
        sys.stderr.write(f"error: {type(error).__name__}: {error}\n")
    finally:
        sys.stderr.flush()
        os._exit(code)
