"""Torch's own lowering of a table, asked in a process of its own: only the executor imports torch."""

import subprocess
import sys

from api.failures import InputError


def lower(table: str) -> str:
    """The table with communication; InputError if torch is not here, or cannot lower it."""
    done = subprocess.run(
        [sys.executable, "-m", "planner.execute.lowered_table"],
        input=table,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode:
        raise InputError(
            f"torch cannot lower the table ({(done.stderr.strip().splitlines() or ['no answer'])[-1]}); "
            "leave --communication out"
        )
    return done.stdout
