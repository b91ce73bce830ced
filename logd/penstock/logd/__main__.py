"""`python -m penstock.logd`: the same as `penstock logd`."""

from penstock.logd.cli import cli

if __name__ == "__main__":
    cli(prog_name="penstock logd")
