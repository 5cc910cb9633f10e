"""`python -m api.cli`: the command without an installed script."""

import sys

from api.cli import main

if __name__ == "__main__":
    sys.exit(main())
