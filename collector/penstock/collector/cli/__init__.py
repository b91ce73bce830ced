"""`penstock collector` and its commands."""

from penstock.collector.cli.main import cli

__all__ = ["cli"]
