"""`python -m penstock.collector`."""

from penstock.base.daemon_imports import daemon_imports

if __name__ == "__main__":
    with daemon_imports():
        from penstock.collector.cli.main import cli

    cli()
