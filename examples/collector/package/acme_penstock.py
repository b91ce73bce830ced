"""A source and a transform of a third party, as a package that is installed beside Penstock.

The source measures how full a directory is. The transform gives requests a template of their path,
so that `/orders/17` and `/orders/18` are counted together.
"""

import asyncio
import contextlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field
from typing_extensions import override

from penstock.collector.decode.metrics import metric_line
from penstock.collector.sources.settings import SourceSettings
from penstock.collector.sources.source import Source, SourceContext
from penstock.collector.spool.writer import Payload, SpoolWriter
from penstock.collector.transforms.transform import (
    PASS,
    Event,
    Transform,
    TransformContext,
    TransformSettings,
    Verdict,
)
from penstock.service import ConfigError, FilePath


class DirectorySizeSettings(SourceSettings):
    """The number and the bytes of a directory's files, as metrics."""

    type: Literal["directory_size"]
    path: FilePath
    service: str = Field(default="directory", min_length=1)
    interval_s: float = Field(default=60.0, ge=0.1, le=86_400)


class DirectorySize(Source):
    """Measures at a fixed interval; one round is one unit of the spool."""

    settings = DirectorySizeSettings

    @classmethod
    @override
    def from_settings(cls, settings: Any, context: SourceContext) -> Self:
        return cls(settings, context.resource, context.spool_writer())

    def __init__(
        self, settings: DirectorySizeSettings, resource: Mapping[str, Any], spool: SpoolWriter
    ) -> None:
        self.name = spool.source
        self._settings = settings
        self._resource = {**resource, "service.name": settings.service}
        self._spool = spool
        self._stopping = asyncio.Event()

    @override
    async def start(self) -> None:
        if not self._settings.path.is_dir():
            raise ConfigError(
                f"source {self.name}: path: {self._settings.path} is no directory",
                fix="name a directory that the collector's user may read",
            )

    @override
    async def run(self) -> None:
        while not self._stopping.is_set():
            lines = await asyncio.to_thread(self._measure)
            # Newer figures come soon: what the spool has no room for is counted as dropped.
            await self._spool.persist_or_drop(Payload("ndjson", b"\n".join(lines), len(lines)))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.interval_s):
                    await self._stopping.wait()

    @override
    async def stop(self) -> None:
        self._stopping.set()

    def _measure(self) -> list[bytes]:
        now_ns = self._spool.clock.unix_ns()
        sizes = list(map(_bytes_of, self._settings.path.iterdir()))
        found = {"files": ("{file}", len(sizes)), "size": ("By", sum(sizes))}
        return [
            metric_line(
                f"directory.{name}",
                unit,
                {"directory.path": str(self._settings.path)},
                {"metric_type": "gauge", "value": value},
                time_ns=now_ns,
                observed_ns=now_ns,
                resource=self._resource,
            )
            for name, (unit, value) in found.items()
        ]


def _bytes_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # removed since the directory was read
        return 0


class UrlTemplateSettings(TransformSettings):
    """Paths of requests get a template, in which `{id}` stands for numbers and UUIDs."""

    type: Literal["url_template"]
    field: str = Field(default="url.path", min_length=1, description="the attribute with the path")


_ID = re.compile(r"(?<=/)([0-9]+|[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})(?=/|$)")


class UrlTemplate(Transform):
    """Sets the attribute `url.template`."""

    settings = UrlTemplateSettings
    outputs = (PASS,)

    @classmethod
    @override
    def from_settings(cls, settings: Any, context: TransformContext) -> Self:
        return cls(settings.field)

    def __init__(self, field: str) -> None:
        self._field = field

    @override
    def apply(self, event: Event, now_ns: int) -> Verdict:
        attributes = event.fields.get("attributes") or {}
        path = attributes.get(self._field)
        if isinstance(path, str):
            template = _ID.sub("{id}", path)
            event.fields = {**event.fields, "attributes": {**attributes, "url.template": template}}
        return PASS
