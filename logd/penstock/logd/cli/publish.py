"""`penstock logd publish`: records from arguments, files or standard input, each of them acked."""

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, Final, TypeVar

import click
from typing_extensions import override

from penstock.base.clock import SystemClock
from penstock.base.pluralize import pluralize
from penstock.logd.cli.output import Progress, echo_json, json_option, safe
from penstock.logd.cli.server import (
    access,
    clients,
    file_option,
    note_below,
    refusal,
    server_option_beside_a_key,
    tls_option,
)
from penstock.logd.client import Access, LogClient, StreamInfo
from penstock.logd.errors import LogdError, NoAnswerError, RefusedError, UnavailableError
from penstock.logd.format.batch import Record
from penstock.logd.format.subjects import matches
from penstock.logd.publisher import BlockingPublisher, PubAck, PublishOptions
from penstock.logd.publisher.publisher import partition_subject
from penstock.service import UnavailableError as ServiceUnavailableError
from penstock.service.cli import FloatRange, IntRange

Function = TypeVar("Function", bound=Callable[..., Any])

_IN_FLIGHT: Final = 256
"""Records sent and not acked, at a time."""

_LINE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of a line of standard input: what NATS carries at most."""

_ASK_S: Final = 5.0
"""Seconds to ask logd which streams store the subject."""

_SHOWN_MAX: Final = 20
"""Acks that are shown one by one to people."""


_NATS_GIVEN: Final = "penstock.logd.nats"


_note: Final = note_below(_NATS_GIVEN)
_login_option: Final = partial(file_option, note=_note)
_LOGIN_OPTIONS: Final = (
    tls_option(
        "--nats-tls",
        "NATS_TLS",
        "Nothing goes to NATS without TLS; tls:// and each of the next two demand it, too.",
        note=_note,
    ),
    _login_option(
        "--nats-ca", "ca_file", "NATS_CA", "Authority of the NATS server's certificate, in PEM."
    ),
    _login_option(
        "--nats-cert", "cert_file", "NATS_CERT", "Certificate to be known by at NATS, in PEM."
    ),
    _login_option("--nats-key", "key_file", "NATS_KEY", "Its key, if it is not in the same file."),
    _login_option("--nats-creds", "creds", "NATS_CREDS", "A NATS user's JWT and seed (.creds)."),
)


def _nats_option(function: Function) -> Function:
    """Add `--nats URL` and the options of authentication, which `_publishing` finds."""
    for option in reversed(_LOGIN_OPTIONS):
        function = option(function)
    return click.option(
        "--nats",
        envvar="PENSTOCK_LOGD_NATS",
        default="nats://127.0.0.1:4222",
        show_default=True,
        show_envvar=True,
        metavar="URL[,...]",
        help="The NATS server that logd listens at, or several.",
    )(function)


def _login() -> dict[str, Any]:
    """Return nats-py's credentials, by the command's options and the environment. Reads files.

    Raises:
        click.UsageError: The options contradict each other.
        RefusedError: `BAD_TLS_FILE`.
    """
    given = dict(click.get_current_context().meta.get(_NATS_GIVEN, {}))
    creds = given.pop("creds", None)
    if given.get("key_file") is not None and given.get("cert_file") is None:
        raise click.UsageError("--nats-key needs --nats-cert")
    found: dict[str, Any] = {}
    context = Access(**given).context()
    if context is not None:
        found["tls"] = context
    if creds is not None:
        found["user_credentials"] = str(creds)
    return found


@contextmanager
def _publishing(nats: str, options: PublishOptions) -> Iterator[BlockingPublisher]:
    """A publisher; its errors become messages with a fix, and exit codes."""
    try:
        make = clients().publisher or BlockingPublisher
        with make(nats, options, **_login()) as publisher:
            yield publisher
    except RefusedError as error:
        raise refusal(error) from None
    except NoAnswerError as error:
        fix = "look before you publish again: penstock logd tail STREAM; with --server naming logd"
        raise ServiceUnavailableError(
            safe(str(error)), fix=f"{fix}, streams that do not answer are published to in batches"
        ) from None
    except UnavailableError as error:
        reason = safe(str(error))
        if reason.startswith("NATS at "):
            fix = "start the NATS server, or name that of logd with --nats nats://HOST:PORT"
        else:
            fix = "see which streams store the subject, penstock logd match SUBJECT, and that"
            fix += " --nats names the NATS server of logd"
        raise ServiceUnavailableError(reason, fix=fix) from None


class _HeaderType(click.ParamType[Any]):
    """`NAME=VALUE`."""

    name = "header"

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        name, equals, content = value.partition("=")
        if not name or not equals:
            self.fail(f"{value!r} is not NAME=VALUE", param, ctx)
        return name, content


@dataclass(slots=True)
class _Stored:
    """Stored records: streams with their first and last offset, and the number of repeats."""

    count: int = 0
    duplicates: int = 0
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)

    def add(self, ack: PubAck, where: str) -> None:
        """Count a stored record or batch."""
        self.count += 1
        self.duplicates += ack.duplicate
        first, last = self.ranges.get(where, (ack.offset, ack.offset))
        self.ranges[where] = (min(first, ack.offset), max(last, ack.offset))

    def text(self, seconds: float) -> str:
        """Return the summary for people."""
        where = ", ".join(f"{name} {a} to {b}" for name, (a, b) in self.ranges.items())
        repeats = f", {self.duplicates} of them before" if self.duplicates else ""
        rate = self.count / max(seconds, 1e-9)
        stored = pluralize(self.count, "record", form=",")
        return f"{stored} stored{repeats}: {where} ({rate:,.0f} records/s)"


@click.command(
    epilog="""\b
    Examples:
      penstock logd publish telemetry.logs.shop 'out of tea' --header level=error
      penstock logd publish prices.tea 3.20 --key tea --stream prices
      journalctl -o json | penstock logd publish telemetry.logs.journal"""
)
@click.argument("subject")
@click.argument("values", nargs=-1, metavar="[VALUE]...")
@click.option(
    "--file",
    "files",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    help="Publish this file as one record; repeatable.",
)
@click.option(
    "--header", "headers", type=_HeaderType(), multiple=True, metavar="NAME=VALUE",
    help="Of every record; repeatable.",
)  # fmt: skip
@click.option("--key", help="Of every record, for compaction and the partition.")
@click.option("--tombstone", is_flag=True, help="Delete what has the --key, at compaction.")
@click.option("--id", "message_id", help="What makes a repeat one; for a single record.")
@click.option("--stream", help="Only this stream's ack counts, where several store the subject.")
@click.option(
    "--partitions", type=IntRange(min=1),
    help="Of the stream: with several, --key says which one it is. Default: logd is asked.",
)  # fmt: skip
@click.option(
    "--retry-s", type=FloatRange(min=0), default=10.0, show_default=True,
    help="How long to go on when nobody answers, or not now.",
)  # fmt: skip
@click.option(
    "--connect-s", type=FloatRange(min=0), default=5.0, show_default=True,
    help="How long to look for a NATS server.",
)  # fmt: skip
@_nats_option
@server_option_beside_a_key
@json_option("An ack a line, as JSON.")
def publish(  # noqa: PLR0913 - what is published, how, and where
    *,
    subject: str,
    values: tuple[str, ...],
    files: tuple[Path, ...],
    headers: tuple[tuple[str, str], ...],
    key: str | None,
    tombstone: bool,
    message_id: str | None,
    stream: str | None,
    partitions: int | None,
    retry_s: float,
    connect_s: float,
    nats: str,
    server: str,
    as_json: bool,
) -> None:
    """Publish records on SUBJECT, and wait until every one is stored.

    logd at --server is asked which streams store the subject: how many partitions they have, and
    whether they answer. To one that does not answer plain messages, each record goes as a batch of
    its own, which is answered. When logd cannot be asked, --key needs --partitions.

    Each VALUE is a record, and each --file; without either, each line of standard input. The first
    that is refused ends the command, with exit code 1, or 69 when no node answers; what was stored
    before it is said, and stays.
    """
    count = None if not values and not files else len(values) + len(files)
    _check(count, tombstone=tombstone, key=key, message_id=message_id)
    options = PublishOptions(
        max_in_flight=_IN_FLIGHT, retry_s=retry_s, stream=stream, connect_timeout_s=connect_s
    )
    target = _ask_target(server, subject, stream)
    if message_id is not None and target.is_silent:
        message = f"{target.names} does not answer plain messages, and only those have an --id"
        raise click.UsageError(message)
    number = partitions or target.partitions(keyed=key is not None)
    with _publishing(nats, options) as publisher:
        try:
            to = partition_subject(subject, key.encode(), number) if key is not None else subject
            place = _Placed(target, to)

            def send(value: bytes | None) -> "Future[PubAck]":
                if target.is_silent:
                    sent = Record(
                        subject=to,
                        value=value,
                        timestamp_ns=SystemClock().unix_ns(),
                        key=None if key is None else key.encode(),
                        headers=tuple((name, text.encode()) for name, text in headers),
                    )
                    return publisher.submit_batch(to, [sent])
                return publisher.submit(
                    to,
                    value or b"",
                    key=None if key is None else key.encode(),
                    headers=dict(headers),
                    message_id=message_id,
                )

            if tombstone:
                assert key is not None
                if target.is_silent:
                    place.show(send(None).result(), as_json=as_json)
                else:
                    place.show(publisher.delete(to, key=key.encode()), as_json=as_json)
                return
            payloads = _lines(sys.stdin.buffer) if count is None else _payloads(values, files)
            _send_all(send, payloads, count, place, as_json=as_json)
        except ValueError as error:
            raise click.UsageError(safe(str(error))) from None
        except BaseException:
            publisher.close(flush=False)
            raise


@dataclass(frozen=True, slots=True)
class _Target:
    """The streams that store a subject, by logd.

    Attributes:
        streams: All of them, or the one that was named.
        unknown: Why logd was not asked; empty: it was.
    """

    streams: tuple[StreamInfo, ...] = ()
    unknown: str = ""

    @property
    def names(self) -> str:
        """Names of the streams for people, separated by commas."""
        return ", ".join(info.name for info in self.streams)

    @property
    def is_silent(self) -> bool:
        """True if none of the streams answers plain messages; a batch is always answered."""
        return bool(self.streams) and not any(
            info.options.get("ack_on_reply", True) and info.options.get("ack_policy") != "none"
            for info in self.streams
        )

    def partitions(self, *, keyed: bool) -> int:
        """Return the number of partitions from which a key chooses.

        Raises:
            ServiceUnavailableError: It is unknown.
            UsageError: The streams have different numbers.
        """
        if not keyed:
            return 1
        if self.unknown:
            message = f"how many partitions a key chooses from is not known: {self.unknown}"
            fix = "name logd's fetch address with --server, or give --partitions"
            raise ServiceUnavailableError(message, fix=fix)
        counts = {len(info.partitions) for info in self.streams}
        if len(counts) > 1:
            message = f"{self.names} store that subject, with different numbers of partitions"
            raise click.UsageError(f"{message}: name one with --stream, or give --partitions")
        return counts.pop() if counts else 1


def _ask_target(server: str, subject: str, stream: str | None) -> _Target:
    try:
        with LogClient(server, timeout_s=_ASK_S, access=access()) as log:
            names = log.match(subject) if stream is None else [stream]
            base, _, number = subject.rpartition(".")
            if not names and base and number.isdecimal():  # the subject of one of the partitions
                names = log.match(base)
            return _Target(tuple(log.stream(name) for name in names))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--server") from None
    except LogdError as error:  # a publisher need not have access there
        return _Target(unknown=safe(str(error)))


@dataclass(frozen=True, slots=True)
class _Placed:
    """The streams and partitions of records on one subject.

    Attributes:
        subject: The subject on which they are published.
    """

    target: _Target
    subject: str

    def partition(self, ack: PubAck) -> int | None:
        """The partition that has stored it; None: its stream has one, or is not known."""
        for info in self.target.streams:
            if info.name == ack.stream and len(info.partitions) > 1:
                stored = (
                    part.partition
                    for part in info.partitions
                    if part.partition and matches(f"{info.subject}.{part.partition}", self.subject)
                )
                return next(stored, 0)
        return None

    def where(self, ack: PubAck) -> str:
        """Stream, and partition where there are several."""
        number = self.partition(ack)
        return ack.stream if number is None else f"{ack.stream}/{number}"

    def show(self, ack: PubAck, *, as_json: bool) -> None:
        """Print where it is stored."""
        if as_json:
            number = self.partition(ack)
            facts: dict[str, Any] = {"stream": ack.stream, "offset": ack.offset, "epoch": ack.epoch}
            facts |= {} if number is None else {"partition": number}
            echo_json(facts | {"duplicate": ack.duplicate})
            return
        repeat = ", as it was before" if ack.duplicate else ""
        click.echo(safe(f"stored in {self.where(ack)} at offset {ack.offset}{repeat}"))


def _check(count: int | None, *, tombstone: bool, key: str | None, message_id: str | None) -> None:
    if tombstone and (key is None or count):
        raise click.UsageError("--tombstone goes with --key, and has no value")
    if tombstone and message_id is not None:
        raise click.UsageError("--tombstone takes no --id")
    if message_id is not None and count != 1:
        raise click.UsageError("--id goes with a single VALUE or --file: it is one record's")


def _send_all(
    send: Callable[[bytes], "Future[PubAck]"],
    payloads: Iterable[bytes],
    count: int | None,
    place: _Placed,
    *,
    as_json: bool,
) -> None:
    stored, waiting = _Stored(), deque[Future[PubAck]]()
    one_by_one = as_json or (count is not None and count <= _SHOWN_MAX)

    def take(future: "Future[PubAck]") -> None:
        try:
            ack = future.result()
        except LogdError as error:
            what = "may be stored" if isinstance(error, NoAnswerError) else "is not stored"
            click.echo(f"record {stored.count + 1} of the input {what}", err=True)
            raise
        stored.add(ack, place.where(ack))
        if one_by_one:
            place.show(ack, as_json=as_json)

    with Progress("publishing", count) as progress:
        try:
            for payload in payloads:
                waiting.append(send(payload))
                progress.advance(1, len(payload))
                while len(waiting) >= _IN_FLIGHT or (waiting and waiting[0].done()):
                    take(waiting.popleft())
            while waiting:
                take(waiting.popleft())
        finally:
            if stored.count and not one_by_one:
                click.echo(stored.text(progress.seconds))


def _payloads(values: tuple[str, ...], files: tuple[Path, ...]) -> Iterator[bytes]:
    for value in values:
        yield value.encode("utf-8", "surrogateescape")
    for file in files:
        yield file.read_bytes()


def _lines(source: IO[bytes]) -> Iterator[bytes]:
    """The lines of standard input, without their ends."""
    if sys.stdin.isatty():
        click.echo("one record a line; Ctrl-D ends", err=True)
    while line := source.readline(_LINE_BYTES_MAX):
        yield line.removesuffix(b"\n").removesuffix(b"\r")
