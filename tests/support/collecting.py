"""A collector with sources of its own, and the log that it fills."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.collector import Collector
from tests.support.logd import Logd
from tests.support.waiting import wait_until

STREAMS = [
    {"name": kind, "subject": f"telemetry.{kind}.>"} for kind in ("logs", "traces", "metrics")
]


@contextmanager
def collecting(
    directory: Path, nats_url: str, *sources: dict[str, Any]
) -> Iterator[tuple[Logd, Collector]]:
    with (
        Logd(directory / "logd", nats_url, STREAMS) as logd,
        Collector(directory / "collector", nats_url, list(sources)) as collector,
    ):
        yield logd, collector
        wait_until(collector.is_idle)


def records(logd: Logd, stream: str) -> list[dict[str, Any]]:
    return [json.loads(value or b"") for value in logd.values(stream)]


def endpoint(collector: Collector, name: str) -> str:
    found: str = json.loads((collector.data_dir / "endpoints.json").read_text())[name]
    return found
