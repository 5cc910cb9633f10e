"""`pipeplan` and `python -m api`: the command line; who stops it while it still loads gets a line, no traceback."""

import sys

INTERRUPTED = 130
"""`api.failures.Exit.INTERRUPTED`, which is among what loads."""


def main() -> int:
    """Run one command; the answer is its exit code."""
    try:
        from api.cli import main as run

        return run()
    except KeyboardInterrupt:
        sys.stderr.write("\nerror: interrupted\n")
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
