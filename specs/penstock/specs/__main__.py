"""`python -m penstock.specs`, the same as `penstock specs`."""

from penstock.specs.cli import cli

if __name__ == "__main__":
    cli()
