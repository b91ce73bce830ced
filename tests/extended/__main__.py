"""`make test-extended`: the tests of sinks once more, against products that are too large for CI.

What the fakes of products are held to is held against the products themselves, and the sinks are
put through the same faults in front of them. OpenSearch needs Maven and a Java of 21 or newer.

Exit codes: 0 all passed, 1 a test failed, 69 no product can be had here, and why.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.extended.opensearch import UnavailableError, running

DIRECTORY: Final = Path(".work") / "products"
TESTS: Final = ("tests/live/test_sink_contracts.py", "tests/live/test_router_sink_faults.py")
ABOUT: Final = "elasticsearch or document or bulk or word"
UNAVAILABLE: Final = 69


def main() -> int:
    """Run them; further arguments go to pytest."""
    parser = argparse.ArgumentParser(prog="make test-extended", description=__doc__)
    _, further = parser.parse_known_args()
    try:
        with running(DIRECTORY.resolve()) as environment:
            command = [sys.executable, "-m", "pytest", *TESTS, "-k", ABOUT, *further]
            return subprocess.call(command, env={**os.environ, **environment})
    except UnavailableError as error:
        sys.stderr.write(f"test-extended: OpenSearch: {error}\n")
        return UNAVAILABLE


if __name__ == "__main__":
    sys.exit(main())
