"""`python -m penstock.router`."""

from penstock.router.cli.main import cli

if __name__ == "__main__":
    cli(prog_name="penstock router")
