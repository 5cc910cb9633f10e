"""`python -m planner.execute.run.agent OPTIONS PROGRAM`: torchrun, without its traceback where a process has said why.

Exits with the code of the process that failed first; torchrun itself exits with 1.
"""

import sys

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main

_REFUSED = 2
"""Exit code of a process that did not begin, and said why."""


def run_agent() -> None:
    """Start the processes of this host, and exit as they did."""
    try:
        main()
    except ChildFailedError as error:
        code = error.get_first_failure()[1].exitcode
        if code != _REFUSED:
            sys.stderr.write(f"{error}\n")
        sys.exit(code if code > 0 else 1)


if __name__ == "__main__":
    run_agent()
