"""Metrics scraped from Prometheus exporters, each target at its own pace.

A scrape's samples become one unit, with ``up`` (1, or 0 when the scrape failed),
``scrape_duration_seconds`` and ``scrape_samples_scraped`` as Prometheus itself adds them. What the
spool has no room for is counted as dropped: the next scrape has newer figures.

Targets are configured, or found in files, behind names of DNS and by Kubernetes, and looked for
again each `refresh_s`; what a file or name had before stays while it cannot be read.
"""

import asyncio
import base64
import contextlib
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self
from urllib.parse import unquote_to_bytes, urlsplit

from pydantic import Field, field_validator, model_validator
from typing_extensions import override

from penstock.collector.decode.metrics import metric_line
from penstock.collector.decode.prometheus.exposition import Scraped, ScrapedPoint, read_exposition
from penstock.collector.decode.prometheus.exposition_protobuf import ACCEPT as PROTOBUF
from penstock.collector.errors import RemoteProtocolError, UndecodableError
from penstock.collector.limits import SCRAPE_BYTES_MAX
from penstock.collector.sources.network.http import get
from penstock.collector.sources.prometheus.discovery import (
    DiscoveryError,
    DnsSection,
    Target,
    labels_of_url,
    read_files,
    resolve,
    target_of,
)
from penstock.collector.sources.prometheus.kubernetes import (
    KubernetesDiscovery,
    KubernetesTargets,
)
from penstock.collector.sources.prometheus.relabel import Labels, RelabelRule, compile_rules
from penstock.collector.sources.settings import SourceSettings
from penstock.collector.sources.source import Source, SourceContext
from penstock.collector.spool.writer import Payload, SpoolWriter
from penstock.logd.security.tls import CertificateFiles, TlsFileError
from penstock.service import ConfigError, FilePath
from penstock.service.config_types import Form, Secret

if TYPE_CHECKING:
    import ssl

_LARGE_BYTES: Final = 1 << 20
"""An answer that is parsed in a second, not in a moment."""
_ACCEPT: Final = (
    "application/openmetrics-text;version=1.0.0;q=0.9,text/plain;version=0.0.4;q=0.8,*/*;q=0.1"
)


_AGAIN_S: Final = 0.1
"""Between two looks, however often objects of Kubernetes change."""

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
    targets: list[
        Annotated[str, Form(r"^https?://[^/\s]+(/\S*)?$", "a URL as http://HOST:PORT/PATH")]
    ] = Field(default=[], description="URLs")
    files: list[Annotated[str, Field(min_length=1)]] = Field(
        default=[], max_length=64, description="patterns of files with targets, in JSON or YAML"
    )
    dns: list[DnsSection] = Field(default=[], max_length=64)
    kubernetes: list[KubernetesTargets] = Field(default=[], max_length=64)
    refresh_s: float = Field(
        default=30.0, ge=0.1, le=86_400, description="between looks at files and names"
    )
    max_targets: int = Field(
        default=1000, ge=1, le=100_000, description="of files and names; more are left out"
    )
    relabel: list[RelabelRule] = Field(
        default=[], max_length=256, description="rules for the labels of targets"
    )
    metric_relabel: list[RelabelRule] = Field(
        default=[], max_length=256, description="rules for the labels of samples"
    )
    interval_s: float = Field(default=15.0, ge=0.1, le=86_400)
    timeout_s: float = Field(default=10.0, gt=0, le=3600)
    native_histograms: bool = Field(
        default=False, description="targets are asked for protobuf, which alone has them"
    )
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

    @model_validator(mode="after")
    def _has_targets(self) -> Self:
        if not (self.targets or self.files or self.dns or self.kubernetes):
            msg = "set `targets`, `files` or `dns`"
            raise ValueError(msg)
        return self

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
        node: The collector's node in Kubernetes.
        bytes_max: A target that answers with more is down.
        large_bytes: Answers with more are read in their own thread.
        read: Reads an answer.
    """

    settings = PrometheusSettings

    @classmethod
    @override
    def from_settings(cls, settings: Any, context: SourceContext) -> Self:
        return cls(
            settings, context.resource, spool_writer=context.spool_writer(), node=context.node
        )

    def __init__(  # noqa: PLR0913 - what it scrapes, and bounds
        self,
        section: PrometheusSettings,
        resource: Mapping[str, Any],
        *,
        spool_writer: SpoolWriter,
        node: str = "",
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
        self._relabel = compile_rules(section.relabel)
        self._metric_relabel = compile_rules(section.metric_relabel)
        self._discovered: dict[str, list[Labels]] = {}
        self._kubernetes = [
            KubernetesDiscovery(
                one, node, where=f"source {self.name}: kubernetes.{index}",
                changed=self._look_again, note=spool_writer.note, failed=self._kubernetes_failed,
            )
            for index, one in enumerate(section.kubernetes)
        ]  # fmt: skip
        self._look_due = asyncio.Event()
        self._following: dict[Target, asyncio.Task[None]] = {}
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
                watching = [tasks.create_task(one.run()) for one in self._kubernetes]
                await self._look(tasks)
                for task in watching:
                    task.cancel()
        finally:
            for threads in (self._parsing, self._parsing_large):
                threads.shutdown(wait=False, cancel_futures=True)

    @override
    async def stop(self) -> None:
        self._stopping.set()
        self._look_due.set()

    def _look_again(self) -> None:
        self._look_due.set()

    def _kubernetes_failed(self, why: str) -> None:
        self._spool_writer.note("discoveries_failed")
        self._spool_writer.log.warning("discovery_failed", discovery="kubernetes", error=why)

    async def _look(self, tasks: asyncio.TaskGroup) -> None:
        """Follow the targets that there are, and look again where they may change."""
        section = self._section
        fixed = [self._configured(url) for url in section.targets]
        while True:
            await self._discover()
            parts = [*self._discovered.values(), *(one.targets() for one in self._kubernetes)]
            found = [target_of(one, self._relabel) for part in parts for one in part]
            wanted = dict.fromkeys(one for one in found if one is not None and _is_url(one.url))
            self._spool_writer.note("targets_left_out", max(0, len(wanted) - section.max_targets))
            chosen = [one for one in fixed if one is not None]
            self._change(tasks, dict.fromkeys([*chosen, *[*wanted][: section.max_targets]]))
            if not (section.files or section.dns or self._kubernetes):
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(section.refresh_s):
                    await self._look_due.wait()
            if self._stopping.is_set() or await self._stops_within(_AGAIN_S):
                return
            self._look_due.clear()

    def _configured(self, url: str) -> Target | None:
        """The target of a URL; None: the rules drop it."""
        if not self._section.relabel:
            return Target(url)
        return target_of(labels_of_url(url, {}), self._relabel)

    async def _discover(self) -> None:
        """Read files and resolve names; what fails keeps the targets of before."""
        found, wrong = await asyncio.to_thread(read_files, self._section.files)
        for section in self._section.dns:
            for name in section.names:
                key = f"{name} {section.type} {section.port}"
                try:
                    found[key] = await resolve(section, name)
                except DiscoveryError as failure:
                    wrong[key] = str(failure)
        kept = {key: part for key, part in self._discovered.items() if key in wrong}
        self._discovered = kept | found
        self._spool_writer.note("discoveries_failed", len(wrong))
        for key, error in wrong.items():
            self._spool_writer.log.warning("discovery_failed", discovery=key, error=error)

    def _change(self, tasks: asyncio.TaskGroup, wanted: Mapping[Target, None]) -> None:
        """Begin to follow targets that are new, and leave those that are gone."""
        for target in self._following.keys() - wanted.keys():
            self._following.pop(target).cancel()
            self._first_ns.pop(target.url, None)
        for target in wanted:
            if target not in self._following:
                self._following[target] = tasks.create_task(self._follow(target))

    async def _stops_within(self, timeout_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._stopping.wait()
        return self._stopping.is_set()

    async def _follow(self, target: Target) -> None:
        while not self._stopping.is_set():
            began_ns = self._spool_writer.clock.monotonic_ns()
            await self._take(target)
            spent_s = (self._spool_writer.clock.monotonic_ns() - began_ns) / 1e9
            await self._stops_within(max(0.0, self._section.interval_s - spent_s))

    async def _take(self, target: Target) -> None:
        clock = self._spool_writer.clock
        now_ns, began_ns = clock.unix_ns(), clock.monotonic_ns()
        first_ns = self._first_ns.setdefault(target.url, now_ns)
        up, scraped = 1, Scraped()
        try:
            scraped = await self._scrape(target.url, now_ns, first_ns)
        except (OSError, RemoteProtocolError, UndecodableError, TimeoutError) as error:
            up = 0
            self._spool_writer.note("scrapes_failed")
            # Not the target itself: it may have a password or a token in it.
            self._spool_writer.log.warning(
                "scrape_failed", **_address(target.url), error=_words(error)
            )
        self._spool_writer.note("samples_malformed", scraped.malformed)
        self._spool_writer.note("exemplars_dropped", scraped.exemplars_dropped)
        for what, count in scraped.notes.items():
            self._spool_writer.note(what, count)
        seconds = (clock.monotonic_ns() - began_ns) / 1e9
        own = (("up", up), ("scrape_duration_seconds", seconds),
               ("scrape_samples_scraped", scraped.samples))  # fmt: skip
        points = self._relabelled(scraped.points) + [
            ScrapedPoint(name, "", {}, {"metric_type": "gauge", "value": value})
            for name, value in own
        ]
        own_labels = dict(target.labels)
        resource = self._resource | _address(target.url)
        if job := own_labels.pop("job", ""):
            resource["service.name"] = job
        if instance := own_labels.pop("instance", ""):
            resource["service.instance.id"] = instance
        lines = await asyncio.to_thread(_lines, points, now_ns, resource, own_labels)
        await self._spool_writer.persist_or_drop(Payload("ndjson", b"\n".join(lines), len(lines)))

    def _relabelled(self, points: list[ScrapedPoint]) -> list[ScrapedPoint]:
        """The points that the rules keep, by the names and labels that these give them."""
        if not self._section.metric_relabel:
            return points
        found: list[ScrapedPoint] = []
        for point in points:
            labels = self._metric_relabel({**point.labels, "__name__": point.name})
            if labels is not None and (name := labels.pop("__name__", "")):
                kept = {key: value for key, value in labels.items() if not key.startswith("__")}
                found.append(replace(point, name=name, labels=kept))
        self._spool_writer.note("samples_dropped_by_rules", len(points) - len(found))
        return found

    async def _scrape(self, target: str, now_ns: int, first_ns: int) -> Scraped:
        """Fetch and read; as in Prometheus, the time limit is on what the target does.

        Raises:
            OSError: It cannot be connected to.
            TimeoutError: It is too slow.
            RemoteProtocolError: It answers otherwise than expected.
            UndecodableError: What it answers are no metrics.
        """
        accept = f"{PROTOBUF};q=1.0,{_ACCEPT}" if self._section.native_histograms else _ACCEPT
        headers = {"accept": accept, "user-agent": "penstock-collector"}
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


def _lines(
    points: list[ScrapedPoint],
    now_ns: int,
    resource: Mapping[str, Any],
    labels: Mapping[str, str],
) -> list[bytes]:
    return [
        metric_line(
            point.name, point.unit, _together(point.labels, labels), point.typed,
            time_ns=now_ns if point.time_ns is None else point.time_ns,
            observed_ns=now_ns, resource=resource,
        )
        for point in points
    ]  # fmt: skip


def _together(own: Mapping[str, str], labels: Mapping[str, str]) -> Mapping[str, str]:
    """A sample's labels and its target's, which it has as `exported_…` where both have one."""
    if not labels:
        return own
    kept = {f"exported_{name}" if name in labels else name: value for name, value in own.items()}
    return {**kept, **labels}


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
