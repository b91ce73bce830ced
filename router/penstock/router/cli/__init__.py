"""The commands of `penstock router`."""

from penstock.router.cli.main import cli

__all__ = ["cli"]
