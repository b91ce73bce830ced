"""OpenTelemetry's own protocol, over gRPC and HTTP: logs, spans and metrics; acknowledged.

A request is read, mapped and checked before it is answered, so that the sender hears how many of
its records are refused (a partial success; they are in quarantine with the reason). OK means that
the rest is durable in the spool. No room means `UNAVAILABLE` or 503 with a delay.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from typing_extensions import override

from penstock.collector.decode.otlp.logs import Made, map_logs
from penstock.collector.decode.otlp.messages import (
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
from penstock.collector.sources.network.tls import ServerTls
from penstock.collector.sources.otlp.grpc import OtlpGrpc
from penstock.collector.sources.otlp.http import OtlpHttp
from penstock.collector.sources.otlp.response import Answer, Code, come_again
from penstock.collector.sources.otlp.settings import OtlpSettings
from penstock.collector.sources.source import Source, SourceContext
from penstock.collector.spool.memory_budget import Charge
from penstock.collector.spool.rejection_reasons import meaning
from penstock.collector.spool.writer import Payload, SpoolWriter
from penstock.specs.errors import RefusedRecordError
from penstock.specs.validate.validator import check_line
from penstock.specs.validate.verdict import Accepted

_MAPPED_AT_ONCE: Final = 2
"""Requests taken apart at once: one may wait for its turn while the other has it."""
_TURN_RECORDS: Final = 200
"""Records mapped before other tasks get a turn; a few milliseconds of work."""


@dataclass(slots=True)
class _Taken:
    """A request's records, one a line; those that `unread` names by index are OTLP's objects."""

    lines: list[bytes] = field(default_factory=list)
    verdicts: list[Accepted | None] = field(default_factory=list)
    unread: list[tuple[int, str]] = field(default_factory=list)
    size: int = 0
    rejected: int = 0
    reason: str = ""

    def add(self, found: list[Made]) -> None:
        """Take lines, with the validator's verdicts where they are known, and what is none."""
        for made, known in found:
            line = made if isinstance(made, bytes) else made.encode()
            self.size += len(line)
            self.lines.append(line)
            self.verdicts.append(known or self._validate(made))

    def _validate(self, made: bytes | str) -> Accepted | None:
        """The verdict on the line that was taken last; None: it is refused, or is none."""
        if isinstance(made, str):
            reason = "not_otlp"
            self.unread.append((len(self.lines) - 1, reason))
        else:
            verdict = check_line(made)
            if isinstance(verdict, Accepted):
                return verdict
            code = f"{verdict.reason}: {verdict.detail}".removesuffix(": ")
            reason = meaning(code) or code
        self.rejected += 1
        self.reason = self.reason or reason
        return None


class OtlpSource(Source):
    """Listens for gRPC, HTTP or both.

    What a request is made of on its way to the spool takes many times its bytes, so only some are
    taken apart at once; of the others only the bytes lie here, and are within the source's share.

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
        self._mapping = asyncio.Semaphore(_MAPPED_AT_ONCE)
        self._endpoints: dict[str, str] = {}
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
            signal: What it is of.
            body: Its bytes.
            encoding: Theirs.
            charge: What it holds.
            until_s: How long it waits for its turn, by the event loop's clock.
        """
        notes: Counter[str] = Counter()

        def note(what: str, times: int) -> None:
            notes[what] += times

        try:
            lines = self._lines(signal, body, encoding, note)
            taken = await self._taken(lines, charge, until_s)
        except (RemoteProtocolError, RefusedRecordError) as error:
            self._spool_writer.note("requests_malformed")
            return _refuse(encoding, Code.INVALID_ARGUMENT, str(error))
        if taken is None:
            return self._come_again(
                encoding, "too much is being received at once", Code.RESOURCE_EXHAUSTED
            )
        count, records_max = len(taken.lines), self._spool_writer.limits.otlp_records_max
        if taken.size > UNIT_DECOMPRESSED_BYTES_MAX or count > records_max:
            self._spool_writer.note("requests_too_large")
            limit = f"{records_max} records or {UNIT_DECOMPRESSED_BYTES_MAX} bytes as JSON"
            return _refuse(encoding, Code.RESOURCE_EXHAUSTED, f"more than {limit}: send less")
        refusal = await self._keep(taken, encoding, charge) if count else None
        if refusal is not None:
            return refusal
        for what, times in notes.items():  # what is refused comes again
            self._spool_writer.note(what, times)
        return _accept(signal, encoding, taken, count)

    async def _keep(self, taken: _Taken, encoding: Encoding, charge: Charge) -> Answer | None:
        """Make records durable; the answer when that cannot be. Their lines are let go."""
        meta = {"refused": taken.unread} if taken.unread else {}
        data, count = b"\n".join(taken.lines), len(taken.lines)
        taken.lines.clear()
        try:
            payload = Payload("ndjson", data, count, meta, taken.verdicts)
            await self._spool_writer.persist(payload, wait=False, charge=charge)
        except SpoolFullError as error:
            self._spool_writer.note("refused_spool_full", count)
            if error.for_ever:
                return _refuse(encoding, Code.RESOURCE_EXHAUSTED, "larger than the spool")
            return self._come_again(encoding, "the spool is full")
        except SpoolFailedError:
            self._spool_writer.note("refused_spool_failed", count)
            return self._come_again(encoding, "the spool cannot write")
        return None

    async def _taken(
        self, lines: Iterator[list[Made]], charge: Charge, until_s: float
    ) -> _Taken | None:
        """A request's records, which `charge` then holds; None when there was no room in time.

        A resource that many small records share stands in each of their lines, so these may take
        many times what was read. What they take is held, if need be beyond the bounds, and then no
        further request is taken apart until enough of it is durable.
        """
        now_s = asyncio.get_running_loop().time
        while await charge.share.settled(max(0.0, until_s - now_s())):
            if not await self._gets_turn(until_s):
                return None
            try:
                if charge.share.is_within:
                    taken = await self._map(lines)
                    charge.grow(taken.size)
                    return taken
            finally:
                self._mapping.release()
        return None

    async def _gets_turn(self, until_s: float) -> bool:
        """Take one of the few turns; false after the time."""
        try:
            async with asyncio.timeout_at(until_s):
                await self._mapping.acquire()
        except TimeoutError:
            return False
        return True

    def _lines(
        self, signal: Signal, body: bytes, encoding: Encoding, note: Note
    ) -> Iterator[list[Made]]:
        now_ns = self._spool_writer.clock.unix_ns()
        if encoding is Encoding.PROTOBUF and signal is LOGS:
            yield from map_logs(body, self._resource, now_ns, note)
            return
        for element in decode_request(signal, body, encoding):
            for made in map_element(element, self._resource, now_ns, note):
                yield [(made, None)]

    async def _map(self, lines: Iterator[list[Made]]) -> _Taken:
        taken, turn = _Taken(), _TURN_RECORDS
        records_max = self._spool_writer.limits.otlp_records_max
        for found in lines:
            taken.add(found)
            if len(taken.lines) >= turn:
                turn += _TURN_RECORDS
                await asyncio.sleep(0)
            if taken.size > UNIT_DECOMPRESSED_BYTES_MAX or len(taken.lines) > records_max:
                return taken
        return taken

    def _come_again(
        self, encoding: Encoding, message: str, code: Code = Code.UNAVAILABLE
    ) -> Answer:
        self._spool_writer.note("requests_deferred")
        return come_again(encoding, code, message)


def _refuse(encoding: Encoding, code: Code, message: str) -> Answer:
    return Answer(code, encode_status(encoding, code, message), message)


def _accept(signal: Signal, encoding: Encoding, taken: _Taken, count: int) -> Answer:
    message = (
        f"{taken.rejected} of {count} {signal.members} are in quarantine, the first: {taken.reason}"
    )
    return Answer(Code.OK, encode_response(signal, encoding, taken.rejected, message))
