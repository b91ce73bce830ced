"""Where a running collector listens, in a file for people and for tests."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import structlog

from penstock.base.files import atomic_write
from penstock.collector.runner import Runner

ENDPOINTS_FILE: Final = "endpoints.json"


def write_endpoints(path: Path, admin: str, runners: Iterable[Runner]) -> None:
    """Name the admin server's address, and each source's: by its type the first one's."""
    endpoints = {"admin": admin}
    for runner in runners:
        source = runner.source
        if source.endpoint is not None:
            endpoints.setdefault(runner.section.type, source.endpoint)
            endpoints[source.name] = source.endpoint
        for part, address in source.endpoints.items():
            endpoints[f"{source.name}.{part}"] = address
    try:
        atomic_write(path, json.dumps(endpoints), durable=False)
    except OSError as error:  # the collector runs all the same
        structlog.get_logger().warning("endpoints not written", error=str(error))
