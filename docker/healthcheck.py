"""Exit code 0 if the address answers with 200: a health check that needs no curl."""

import sys
import urllib.request

try:
    with urllib.request.urlopen(sys.argv[1], timeout=4) as answer:
        sys.exit(answer.status != 200)
except OSError as error:
    sys.exit(f"not healthy: {error}")
