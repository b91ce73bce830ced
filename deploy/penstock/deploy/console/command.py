"""`penstock console`: make the configuration of what the command line says, and run."""

from pathlib import Path

import click

from penstock.deploy.console.config import PREFIX, ConsoleConfig
from penstock.deploy.console.daemon import Console
from penstock.deploy.layout import Layout, default_root, read_running
from penstock.service import UnavailableError, check_only, configure_logs, run_until_stopped
from penstock.service.config import check_document, load_config


def run_console(
    *, config_path: Path | None, directory: Path | None, listen: str | None, check: bool
) -> None:
    """Serve the console until it is stopped.

    Raises:
        ConfigError: The configuration cannot be used.
        UnavailableError: Nothing runs in the directory, or the port is taken.
    """
    config = _config(config_path, directory, listen)
    if check:
        click.echo(check_only(config, config_path or Path("the command line")), nl=False)
        return
    configure_logs("console")
    run_until_stopped(Console(config).run)


def _config(path: Path | None, directory: Path | None, listen: str | None) -> ConsoleConfig:
    changes = {} if listen is None else {"listen": listen}
    if path is not None:
        return load_config(ConsoleConfig, path, env_prefix=PREFIX, changes=changes)
    places = [directory] if directory else [default_root(), Path(".work/demo")]
    for place in places:
        layout = Layout(place.absolute())
        running = read_running(layout)
        if running is None:
            continue
        parts = {name: url for name, url in running["parts"].items() if name != "console"}
        document = {"parts": parts, "logd": running.get("logd"), **changes}
        return check_document(
            ConsoleConfig, document | {"token_file": layout.console_token}, layout.running
        )
    raise UnavailableError(
        f"no penstock runs in {' or '.join(map(str, places))}",
        fix="start it with `penstock up`, name its directory with --dir, or the parts in --config",
    )
