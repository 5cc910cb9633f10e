"""What a process says before it ends: on standard error, and to torchrun, which repeats it below its own lines."""

import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path


def say_last(text: str) -> None:
    """Say it; torchrun's summary of failed processes, the last thing to be read, then has it, too."""
    sys.stderr.write(text)
    sys.stderr.flush()
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        about = {"message": text.strip(), "extraInfo": {"timestamp": int(time.time())}}
        with suppress(OSError):
            Path(path).write_text(json.dumps({"message": about}), encoding="utf-8")
