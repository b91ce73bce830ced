"""Metrics scraped from Prometheus exporters, each target at its own pace.

A scrape's samples become one unit, with ``up`` (1, or 0 when the scrape failed),
``scrape_duration_seconds`` and ``scrape_samples_scraped`` as Prometheus itself adds them. What the
spool has no room for is counted as dropped: the next scrape has newer figures.
"""

import asyncio
import base64
import contextlib
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self
from urllib.parse import unquote_to_bytes, urlsplit

from pydantic import Field, field_validator
from typing_extensions import override

from penstock.collector.decode.metrics import metric_line
from penstock.collector.decode.prometheus import Scraped, ScrapedPoint, read_exposition
from penstock.collector.errors import RemoteProtocolError, UndecodableError
from penstock.collector.limits import SCRAPE_BYTES_MAX
from penstock.collector.sources.network.http import get
from penstock.collector.sources.settings import SourceSettings
from penstock.collector.sources.source import Source, SourceContext
from penstock.collector.spool.writer import Payload, SpoolWriter
from penstock.logd.security.tls import CertificateFiles, TlsFileError
from penstock.service import ConfigError, FilePath
from penstock.service.config_types import Secret

if TYPE_CHECKING:
    import ssl

_LARGE_BYTES: Final = 1 << 20
"""An answer that is parsed in a second, not in a moment."""
_ACCEPT: Final = (
    "application/openmetrics-text;version=1.0.0;q=0.9,text/plain;version=0.0.4;q=0.8,*/*;q=0.1"
)


TOKEN: Final = re.compile(r"[!-~]+")


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        host = (parts.hostname or "").encode("idna")
        return bool(host) and parts.port != 0 and text.isascii() and text.isprintable()
    except ValueError:  # of a port, of brackets, of a name
        return False


class PrometheusSettings(SourceSettings):
    """Metrics scraped from Prometheus exporters."""

    type: Literal["prometheus"]
    targets: list[Annotated[str, Field(pattern=r"^https?://[^/\s]+(/\S*)?$")]] = Field(
        min_length=1, description="URLs"
    )
    interval_s: float = Field(default=15.0, ge=0.1, le=86_400)
    timeout_s: float = Field(default=10.0, gt=0, le=3600)
    max_samples: int = Field(default=50_000, ge=1, le=500_000, description="of one scrape")
    service: str = Field(default="prometheus", min_length=1)
    bearer_token: Secret | None = None
    ca_file: FilePath | None = Field(default=None, description="PEM: who signs https targets")

    @field_validator("targets")
    @classmethod
    def _can_be_asked(cls, value: list[str]) -> list[str]:
        """Require valid URLs; one invalid target would end the scrapes of all."""
        for target in value:
            if not _is_url(target):
                msg = "must be URLs of a host, perhaps a port, in ASCII: http://127.0.0.1:9100/metrics"
                raise ValueError(msg)
        return value

    @field_validator("bearer_token")
    @classmethod
    def _can_be_sent(cls, value: Secret | None) -> Secret | None:
        text = None if value is None or value.value is None else value.value.get_secret_value()
        if text is not None and not TOKEN.fullmatch(text):
            msg = "must be printable ASCII without spaces, as a header has it; look for a newline"
            raise ValueError(msg)
        return value


class PrometheusSource(Source):
    """Scrapes the targets of one section.

    Args:
        resource: The points' resource; each target adds its address.
        bytes_max: A target that answers with more is down.
        large_bytes: Answers with more are read in their own thread.
        read: Reads an answer.
    """

    settings = PrometheusSettings

    @classmethod
    @override
    def from_settings(cls, settings: Any, context: SourceContext) -> Self:
        return cls(settings, context.resource, spool_writer=context.spool_writer())

    def __init__(
        self,
        section: PrometheusSettings,
        resource: Mapping[str, Any],
        *,
        spool_writer: SpoolWriter,
        bytes_max: int = SCRAPE_BYTES_MAX,
        large_bytes: int = _LARGE_BYTES,
        read: Callable[..., Scraped] = read_exposition,
    ) -> None:
        self.name = spool_writer.source
        self._section = section
        self._resource = {**resource, "service.name": section.service}
        self._spool_writer = spool_writer
        self._bytes_max, self._large_bytes, self._read = bytes_max, large_bytes, read
        self._context: ssl.SSLContext | None = None
        self._first_ns: dict[str, int] = {}
        self._stopping = asyncio.Event()
        self._parsing = ThreadPoolExecutor(1, thread_name_prefix=self.name)
        self._parsing_large = ThreadPoolExecutor(1, thread_name_prefix=f"{self.name}-large")

    @override
    async def start(self) -> None:
        try:
            self._context = CertificateFiles(ca_file=self._section.ca_file).client()
        except TlsFileError as error:
            raise ConfigError(f"source {self.name}: ca_file: {error}", fix=error.fix) from None

    @override
    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                for target in self._section.targets:
                    tasks.create_task(self._follow(target))
        finally:
            for threads in (self._parsing, self._parsing_large):
                threads.shutdown(wait=False, cancel_futures=True)

    @override
    async def stop(self) -> None:
        self._stopping.set()

    async def _follow(self, target: str) -> None:
        while not self._stopping.is_set():
            began_ns = self._spool_writer.clock.monotonic_ns()
            await self._take(target)
            spent_s = (self._spool_writer.clock.monotonic_ns() - began_ns) / 1e9
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, self._section.interval_s - spent_s)):
                    await self._stopping.wait()

    async def _take(self, target: str) -> None:
        clock = self._spool_writer.clock
        now_ns, began_ns = clock.unix_ns(), clock.monotonic_ns()
        first_ns = self._first_ns.setdefault(target, now_ns)
        up, scraped = 1, Scraped()
        try:
            scraped = await self._scrape(target, now_ns, first_ns)
        except (OSError, RemoteProtocolError, UndecodableError, TimeoutError) as error:
            up = 0
            self._spool_writer.note("scrapes_failed")
            # Not the target itself: it may have a password or a token in it.
            self._spool_writer.log.warning("scrape_failed", **_address(target), error=_words(error))
        self._spool_writer.note("samples_malformed", scraped.malformed)
        self._spool_writer.note("exemplars_dropped", scraped.exemplars_dropped)
        seconds = (clock.monotonic_ns() - began_ns) / 1e9
        own = (("up", up), ("scrape_duration_seconds", seconds),
               ("scrape_samples_scraped", scraped.samples))  # fmt: skip
        points = scraped.points + [
            ScrapedPoint(name, "", {}, {"metric_type": "gauge", "value": value})
            for name, value in own
        ]
        resource = self._resource | _address(target)
        lines = await asyncio.to_thread(_lines, points, now_ns, resource)
        await self._spool_writer.persist_or_drop(Payload("ndjson", b"\n".join(lines), len(lines)))

    async def _scrape(self, target: str, now_ns: int, first_ns: int) -> Scraped:
        """Fetch and read; as in Prometheus, the time limit is on what the target does.

        Raises:
            OSError: It cannot be connected to.
            TimeoutError: It is too slow.
            RemoteProtocolError: It answers otherwise than expected.
            UndecodableError: What it answers are no metrics.
        """
        headers = {"accept": _ACCEPT, "user-agent": "penstock-collector"}
        if self._section.bearer_token is not None:
            token = await asyncio.to_thread(self._section.bearer_token.read)
            if not TOKEN.fullmatch(token):
                raise PermissionError("bearer_token has a character that no header may have")
            headers["authorization"] = f"Bearer {token}"
        elif basic := _basic(target):
            headers["authorization"] = basic
        reply = await get(
            target,
            headers,
            timeout_s=self._section.timeout_s,
            body_bytes_max=self._bytes_max,
            context=self._context,
        )
        if reply.status != 200:
            raise RemoteProtocolError(f"status {reply.status}")
        # The parser is slow and written in Python: in a thread it delays nobody for long. Large
        # answers have their own thread, so that small ones do not wait for them.
        read = partial(
            self._read,
            reply.body,
            reply.headers.get("content-type", ""),
            scrape_ns=now_ns,
            first_scrape_ns=first_ns,
            max_samples=self._section.max_samples,
        )
        threads = self._parsing_large if len(reply.body) > self._large_bytes else self._parsing
        return await asyncio.get_running_loop().run_in_executor(threads, read)


def _lines(points: list[ScrapedPoint], now_ns: int, resource: Mapping[str, Any]) -> list[bytes]:
    return [
        metric_line(
            point.name, point.unit, point.labels, point.typed,
            time_ns=now_ns if point.time_ns is None else point.time_ns,
            observed_ns=now_ns, resource=resource,
        )
        for point in points
    ]  # fmt: skip


def _basic(target: str) -> str:
    """Return the Basic credentials for user and password in a URL (RFC 7617); empty without."""
    user_info, given, _ = urlsplit(target).netloc.rpartition("@")
    return f"Basic {base64.b64encode(unquote_to_bytes(user_info)).decode()}" if given else ""


def _address(target: str) -> dict[str, Any]:
    parts = urlsplit(target)
    return {
        "service.instance.id": parts.netloc.rpartition("@")[2],
        "server.address": parts.hostname or "",
        "url.scheme": parts.scheme,
    }


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
