"""`python -m penstock.collector`."""

from penstock.collector.cli.main import cli

if __name__ == "__main__":
    cli()
