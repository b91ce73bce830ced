"""`python -m penstock.deploy.console`: the same as `penstock console`."""

import sys

from penstock.deploy.cli import cli

if __name__ == "__main__":
    cli(["console", *sys.argv[1:]], prog_name="penstock")
