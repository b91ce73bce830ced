"""The configuration's files: read, merged, with the environment's values in place, checked.

Several files make one configuration. Mappings are merged key by key; `sources` and `tests` are
joined; anything else may be set by one file only, since which of two wins would depend on their
order.

Variables are put in as in every part's file (`penstock.service.config`). Where the key
`environment` lists names, others are refused.

Processes that are started later inherit the configuration that runs: the files may say something
else by then. Their text travels in an anonymous file of memory: it may hold secrets, which no
argument, variable or file shall show.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from penstock.collector.config import CollectorConfig
from penstock.service import ConfigError
from penstock.service.config import (
    check_document,
    mapping_of,
    override_from,
    read_text,
    with_variables,
)

ENV_PREFIX: Final = "PENSTOCK_COLLECTOR"
_JOINED: Final = frozenset({"sources", "tests", "environment"})


config_files_option = click.option(
    "--config",
    "config_paths",
    type=click.Path(path_type=Path, dir_okay=False),
    multiple=True,
    metavar="FILE",
    help="YAML configuration file; starts the daemon. Several are merged.",
)
"""`--config FILE`, which may be repeated."""


Texts = Mapping[Path, str]
"""What configuration files said when they were read, by their names."""


def read_texts(paths: Sequence[Path]) -> Texts:
    """What the files say now.

    Raises:
        ConfigError: One cannot be read.
    """
    return {path: read_text(path) for path in paths}


def load_collector_config(
    paths: Sequence[Path],
    environ: Mapping[str, str] | None = None,
    *,
    texts: Texts | None = None,
) -> CollectorConfig:
    """One configuration of one or more files.

    Args:
        paths: In any order.
        environ: The environment; the process's own by default.
        texts: What the files said, where that holds, and not what they say now.

    Raises:
        ConfigError: With file, key path, reason and fix for every mistake found.
    """
    environment = os.environ if environ is None else environ
    texts = read_texts(paths) if texts is None else texts
    document: dict[str, Any] = {}
    origins: dict[str, Path] = {}
    for path in paths:
        _merge(document, mapping_of(texts[path], path), path, origins, "")
    name = Path(", ".join(map(str, paths)))
    allowed = document.get("environment")
    listed = frozenset(map(str, allowed)) if isinstance(allowed, list) and allowed else None
    document = with_variables(document, environment, name, allowed=listed)
    override_from(environment, document, ENV_PREFIX)
    return check_document(CollectorConfig, document, name, environ=environment, allowed=listed)


def _merge(
    into: dict[str, Any], more: Mapping[str, Any], path: Path, origins: dict[str, Path], prefix: str
) -> None:
    for key, value in more.items():
        where = f"{prefix}{key}"
        if key not in into:
            into[key] = dict(value) if isinstance(value, dict) else value
            _remember(value, path, origins, where)
        elif isinstance(into[key], dict) and isinstance(value, dict):
            _merge(into[key], value, path, origins, f"{where}.")
        elif prefix == "" and key in _JOINED and isinstance(into[key], list):
            into[key] = [*into[key], *(value if isinstance(value, list) else [value])]
        else:
            raise ConfigError(
                f"{path}: {where}: {origins.get(where, path)} sets it, too",
                fix=f"leave {where} in one of the files",
            )


def _remember(value: Any, path: Path, origins: dict[str, Path], where: str) -> None:
    origins[where] = path
    if isinstance(value, dict):
        for key, inner in value.items():
            _remember(inner, path, origins, f"{where}.{key}")


def write_inherited(texts: Texts) -> int:
    """A descriptor for a process to inherit; the caller closes it."""
    descriptor = os.memfd_create("penstock-collector-config", os.MFD_CLOEXEC)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(json.dumps({str(path): text for path, text in texts.items()}).encode())
    return descriptor


def read_inherited(descriptor: int) -> Texts:
    """What was handed over; the descriptor is closed.

    Raises:
        OSError: Nothing was.
        ValueError: Likewise.
    """
    with open(descriptor, "rb") as file:
        file.seek(0)
        texts = json.load(file)
    return {Path(path): text for path, text in texts.items()}
