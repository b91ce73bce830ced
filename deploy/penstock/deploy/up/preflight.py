"""What a launch needs, looked for before anything is started."""

import socket
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from penstock.base.errors import ConfigError, UnavailableError
from penstock.deploy.up.layout import Layout
from penstock.deploy.up.overlay import check_overlay
from penstock.service.config import read_yaml

_CONNECT_TIMEOUT_S = 5.0
_NATS_PORT = 4222


def read_overlay(path: Path) -> dict[str, Any]:
    """A user's own settings for the parts, see `penstock.deploy.up.overlay`.

    Raises:
        ConfigError: The file is not there, no YAML, or sets what is not the user's to set.
    """
    document = read_yaml(path)
    try:
        check_overlay(document)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}", fix="correct the file") from None
    return document


def require_nats(url: str) -> None:
    """Check that a NATS server answers.

    Raises:
        ConfigError: The URL is not one of a NATS server.
        UnavailableError: Nothing answers there, or not as NATS does.
    """
    parts = urlsplit(url)
    try:
        host, port = parts.hostname, parts.port or _NATS_PORT
    except ValueError:
        host, port = None, 0
    if parts.scheme not in ("nats", "tls") or not host:
        raise ConfigError(
            f"--nats-url {url}: not the URL of a NATS server",
            fix="write it as nats://HOST:PORT",
        )
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S) as connection:
            greeting = connection.recv(5)
    except OSError as error:
        raise UnavailableError(
            f"no NATS server at {url}: {error.strerror or error}",
            fix="start it, or leave --nats-url out to let Penstock start one",
        ) from None
    if greeting != b"INFO ":
        raise UnavailableError(
            f"what answers at {url} is not a NATS server",
            fix="correct --nats-url, or leave it out to let Penstock start one",
        )


def require_java(layout: Layout) -> None:
    """Check that Spark will find a Java, before anything is started for nothing.

    Raises:
        UnavailableError: There is none, or only an old one.
    """
    from penstock.router.spark.java import find_java  # needs pyspark, which `doctor` may be without

    work = layout.data("router")
    work.mkdir(parents=True, exist_ok=True)
    find_java(work)


def require_same_nodes(layout: Layout, nodes: int) -> None:
    """Check that a directory that holds streams holds those of as many logd.

    Raises:
        ConfigError: It does not: the others would miss what is theirs.
    """
    held = 1 if layout.data("logd").exists() else len([*layout.root.glob("logd-[0-9]")])
    if held not in (0, nodes):
        raise ConfigError(
            f"{layout.root}: holds the streams of {held} logd, not of {nodes}",
            fix=f"--nodes {held}, another directory (--dir), or remove this one",
        )


def require_writable(path: Path) -> None:
    """Check that a result can be written, before a minute is spent on it.

    Raises:
        ConfigError: It cannot.
    """
    try:
        path.open("a").close()
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be written: {error.strerror}",
            fix="name a file in a directory that exists and that you can write to with --json",
        ) from None


def example_app(layout: Layout) -> tuple[str, ...]:
    """The command that runs the example app.

    Raises:
        UnavailableError: This is an installed wheel, which holds no examples.
    """
    app = Path(__file__).resolve().parents[4] / "examples" / "checkout_app.py"
    if not app.is_file():
        raise UnavailableError(
            "the example app is not part of the installed package",
            fix="run the demo from a clone of the repository: make demo",
        )
    return (sys.executable, str(app), "--socket", str(layout.socket), "--seconds", "0")
