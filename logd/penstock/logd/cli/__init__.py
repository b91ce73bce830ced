"""The command line: `penstock logd`."""

from penstock.logd.cli.main import cli

__all__ = ["cli"]
