"""`python -m penstock.router`, and the file that `spark-submit` is given."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # The directory of a script comes first among those to import from: these are no top modules.
    sys.path[:] = [path for path in sys.path if Path(path) != Path(__file__).parent]

    from penstock.base.daemon_imports import daemon_imports

    with daemon_imports():
        from penstock.router.cli.main import cli

    cli(prog_name="penstock router")
