"""OpenTelemetry's own protocol, over gRPC and HTTP: logs, spans and metrics; acknowledged.

A request is read, mapped and checked before it is answered, so that the sender hears how many of
its records are refused (a partial success; they are in quarantine with the reason). OK means that
the rest is durable in the spool. No room means `UNAVAILABLE` or 503 with a delay.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

from typing_extensions import override

from penstock.base.lazy_module import LazyModule
from penstock.collector.decode.otlp.messages import (
    DECODER,
    LOGS,
    Encoding,
    Signal,
    decode_request,
    encode_response,
    encode_status,
)
from penstock.collector.decode.otlp.records import Note, map_element
from penstock.collector.errors import RemoteProtocolError, SpoolFailedError, SpoolFullError
from penstock.collector.limits import UNIT_DECOMPRESSED_BYTES_MAX
from penstock.collector.sources.network.listener import Listener
from penstock.collector.sources.network.records import RequestMapper, RequestRecords
from penstock.collector.sources.network.tls import ServerTls
from penstock.collector.sources.otlp.grpc import OtlpGrpc
from penstock.collector.sources.otlp.http import OtlpHttp
from penstock.collector.sources.otlp.response import Answer, Code, come_again
from penstock.collector.sources.otlp.settings import OtlpSettings
from penstock.collector.sources.source import Source, SourceContext
from penstock.collector.spool.memory_budget import Charge
from penstock.collector.spool.writer import SpoolWriter
from penstock.specs.errors import RefusedRecordError

if TYPE_CHECKING:
    from penstock.collector.decode.otlp import logs
else:
    logs = LazyModule(DECODER)


class OtlpSource(Source):
    """Listens for gRPC, HTTP or both.

    Args:
        resource: The resource of requests that bring none.
    """

    settings = OtlpSettings

    @classmethod
    @override
    def from_settings(cls, settings: Any, context: SourceContext) -> Self:
        return cls(settings, context.resource, spool_writer=context.spool_writer())

    def __init__(
        self, section: OtlpSettings, resource: Mapping[str, Any], *, spool_writer: SpoolWriter
    ) -> None:
        self.name = spool_writer.source
        self._section = section
        self._resource = resource
        self._spool_writer = spool_writer
        self._mapper = RequestMapper(spool_writer)
        self._endpoints: dict[str, str] = {}
        self._decodes = False
        self._grpc: OtlpGrpc | None = None
        http = OtlpHttp(
            self.take, spool_writer, body_bytes_max=section.max_message_bytes, cors=section.cors
        )
        self._http = Listener(
            self.name,
            http.serve,
            max_connections=section.max_connections,
            note=spool_writer.note,
            descriptors=spool_writer.share.descriptors,
        )

    @property
    @override
    def endpoint(self) -> str | None:
        return self._endpoints.get("grpc", self._endpoints.get("http"))

    @property
    @override
    def endpoints(self) -> Mapping[str, str]:
        return self._endpoints

    @override
    async def start(self) -> None:
        section = self._section
        tls = ServerTls.of(section.tls, self.name, self._spool_writer.note)
        if section.http is not None:
            await self._http.listen_tcp(
                section.http,
                tls.context if tls else None,
                key="http",
                reuse_port=section.reuse_port,
            )
            assert self._http.endpoint is not None
            self._endpoints["http"] = self._http.endpoint
        if section.grpc is not None:
            self._grpc = OtlpGrpc(section, self.take, self._spool_writer)
            credentials = tls.grpc_credentials() if tls else None
            self._endpoints["grpc"] = await self._grpc.start(section.grpc, credentials)

    @override
    async def run(self) -> None:
        await asyncio.Event().wait()

    @override
    async def stop(self) -> None:
        try:
            if self._grpc is not None:
                await self._grpc.stop()
        finally:
            await self._http.close()

    async def take(
        self, signal: Signal, body: bytes, encoding: Encoding, charge: Charge, until_s: float
    ) -> Answer:
        """Answer one request, once it is durable or refused.

        Args:
            signal: Signal of the request.
            body: Its bytes.
            encoding: Theirs.
            charge: Charge of its bytes.
            until_s: Time until which it waits for its turn, by the event loop's clock.
        """
        if not self._decodes:
            # The first request has the decoder and protobuf imported: 30 ms, 2 MiB.
            await asyncio.to_thread(import_module, DECODER)
            self._decodes = True
        notes: Counter[str] = Counter()

        def note(what: str, times: int) -> None:
            notes[what] += times

        try:
            lines = self._lines(signal, body, encoding, note)
            taken = await self._mapper.map(lines, charge, until_s)
        except (RemoteProtocolError, RefusedRecordError) as error:
            self._spool_writer.note("requests_malformed")
            return _refuse(encoding, Code.INVALID_ARGUMENT, str(error))
        if taken is None:
            return self._come_again(
                encoding, "too much is being received at once", Code.RESOURCE_EXHAUSTED
            )
        count, max_records = len(taken.lines), self._spool_writer.limits.max_request_records
        if taken.exceeds(max_records):
            self._spool_writer.note("requests_too_large")
            limit = f"{max_records} records or {UNIT_DECOMPRESSED_BYTES_MAX} bytes as JSON"
            return _refuse(encoding, Code.RESOURCE_EXHAUSTED, f"more than {limit}: send less")
        refusal = await self._keep(taken, encoding, charge) if count else None
        if refusal is not None:
            return refusal
        for what, times in notes.items():  # what is refused comes again
            self._spool_writer.note(what, times)
        return _accept(signal, encoding, taken, count)

    async def _keep(
        self, taken: RequestRecords, encoding: Encoding, charge: Charge
    ) -> Answer | None:
        """Make records durable; the answer when that cannot be. Their lines are let go."""
        payload = taken.payload()
        try:
            await self._spool_writer.persist(payload, wait=False, charge=charge)
        except SpoolFullError as error:
            self._spool_writer.note("refused_spool_full", payload.count)
            if error.for_ever:
                return _refuse(encoding, Code.RESOURCE_EXHAUSTED, "larger than the spool")
            return self._come_again(encoding, "the spool is full")
        except SpoolFailedError:
            self._spool_writer.note("refused_spool_failed", payload.count)
            return self._come_again(encoding, "the spool cannot write")
        return None

    def _lines(
        self, signal: Signal, body: bytes, encoding: Encoding, note: Note
    ) -> Iterator[list["logs.Made"]]:
        now_ns = self._spool_writer.clock.unix_ns()
        if encoding is Encoding.PROTOBUF and signal is LOGS:
            yield from logs.map_logs(body, self._resource, now_ns, note)
            return
        for element in decode_request(signal, body, encoding):
            for made in map_element(element, self._resource, now_ns, note):
                yield [(made, None)]

    def _come_again(
        self, encoding: Encoding, message: str, code: Code = Code.UNAVAILABLE
    ) -> Answer:
        self._spool_writer.note("requests_deferred")
        return come_again(encoding, code, message)


def _refuse(encoding: Encoding, code: Code, message: str) -> Answer:
    return Answer(code, encode_status(encoding, code, message), message)


def _accept(signal: Signal, encoding: Encoding, taken: RequestRecords, count: int) -> Answer:
    rejected, reason = len(taken.rejected), next(iter(taken.rejected.values()), "")
    message = f"{rejected} of {count} {signal.members} are in quarantine, the first: {reason}"
    return Answer(Code.OK, encode_response(signal, encoding, rejected, message))
