"""`pipeplan worker` in a fork, with little patience: tests need not wait half a minute for whatever died or froze.

python -m tests.api.jobs.hasty_worker URL
"""

import sys
from pathlib import Path

from api.jobs.workers import postgres_worker
from api.jobs.workers.runner import Patience
from api.settings import Settings
from tests.api.forked_solvers import join_forks

LEASE_S = 6.0
"""A job whose worker says nothing for so long is another's."""


def main() -> None:
    """Work until a signal comes."""
    join_forks()
    postgres_worker.LOOK_AROUND = "* * * * * */5"
    patience = Patience(lease_s=LEASE_S, look_s=0.2, report_s=0.2)
    postgres_worker.work(Settings(data=Path(), database_url=sys.argv[1], patience=patience))


if __name__ == "__main__":
    main()
