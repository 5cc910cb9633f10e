"""`pipeplan` in a fork, whose solver processes are forks as well: python -m tests.api.forked_command ARGUMENTS."""

import sys

from api.cli import main
from tests.api.forked_solvers import join_forks

if __name__ == "__main__":
    join_forks()
    sys.exit(main())
