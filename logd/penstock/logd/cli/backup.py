"""`penstock logd backup` and `restore`: a stream in a directory, and back.

Copying a partition's range into a backup while the stream goes on, or saying why it cannot be.

The range was there when the backup began. Meanwhile limits of the stream, or a purge, may delete
its beginning; an election that loses records may take back what was copied already, or the range's
end; the stream may be deleted. What was copied then belongs to no one history, so it is never
finished.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NoReturn

import click

from penstock.base.clock import SystemClock
from penstock.base.errors import DamagedDataError
from penstock.base.files import sync_directories
from penstock.base.pluralize import pluralize
from penstock.logd.api.operations import Fetch
from penstock.logd.cli.output import Progress, echo_json, human_bytes, json_option
from penstock.logd.cli.query import OutputError
from penstock.logd.cli.records import (
    ReadSession,
    check_none_skipped,
    skip_damaged_option,
)
from penstock.logd.cli.server import (
    AskRefusedError,
    asking,
    clients,
    partitions_of,
    server_option,
    stream_argument,
)
from penstock.logd.client import Fetched, LogClient, StreamInfo, calls
from penstock.logd.errors import CorruptError, RefusedError, UnavailableError
from penstock.logd.format.frame import HEADER_SIZE, decode_header, encode_header, parse_frames
from penstock.logd.format.rows import Frame
from penstock.logd.metadata.option import Change
from penstock.logd.offline.backup import (
    FILE_BYTES,
    MANIFEST,
    PARTIAL,
    BackupPartition,
    FileWriter,
    Manifest,
    check_chain,
    cut,
    empty_frame,
    frames_of,
)
from penstock.logd.stream_options import ReplicationSettings, stream_options
from penstock.service import ExitCode, ServiceError, release
from penstock.service.cli import IntRange

SHORT_S: Final = 30.0
"""Seconds for which the committed end may be below the range's end: after an election the new
leader learns what was committed, which takes a moment."""

_FETCH_BYTES: Final = 4 * 1024 * 1024
_WAIT_MS: Final = 1000
_PAUSE_S: Final = 0.5


class BackupOvertakenError(ServiceError):
    """Error of a backup whose records changed while they were copied (exit code 65)."""

    exit_code = ExitCode.DATA


def check_begun(manifest: Manifest, directory: Path) -> None:
    """Look whether what an earlier run has copied can be distinguished from another history.

    Raises:
        BackupOvertakenError: A release that did not ask for the history has copied some of it.
    """
    for number, part in enumerate(manifest.partitions):
        if part.files and part.epoch is None:
            message = f"{directory}: an older release of Penstock began this backup, and nobody"
            message += f" can tell whether what it has of {manifest.stream}/{number} is still there"
            raise BackupOvertakenError(message, fix="begin again in another directory")


class PartitionCopy:
    """One partition's way into a backup.

    Args:
        log: Client of the log to copy from.
        manifest: Manifest of the backup; it is saved with each file.
        number: Number of the partition.
        directory: Directory of the backup.
        progress: Is told.
        pause_s: Seconds before a leader that is behind is asked again.
        short_s: Seconds for which nothing may come though the range goes on.
    """

    def __init__(  # noqa: PLR0913 - what is copied, whither, and how patiently
        self,
        log: LogClient,
        manifest: Manifest,
        number: int,
        directory: Path,
        progress: Progress,
        *,
        pause_s: float = _PAUSE_S,
        short_s: float = SHORT_S,
    ) -> None:
        self._log = log
        self._manifest = manifest
        self._number = number
        self._part = manifest.partitions[number]
        self._directory = directory
        self._progress = progress
        self._clock = SystemClock()
        self._pause_s, self._short_s = pause_s, short_s
        self._short_ns: int | None = None

    def run(self, file_bytes: int = FILE_BYTES) -> None:
        """Copy what no file has yet.

        Raises:
            BackupOvertakenError: It cannot be finished any more.
            CorruptError: What comes is damaged.
            UnavailableError: logd does not answer; it goes on where it stopped.
            OSError: The disk failed.
        """
        part = self._part
        while part.reached < part.end:
            writer = FileWriter(self._directory, self._number, part.reached)
            try:
                self._fill(writer, file_bytes)
            except BaseException:
                writer.abandon()
                raise
            part.files.append(writer.close())
            self._manifest.save(self._directory / PARTIAL)

    def _fill(self, writer: FileWriter, file_bytes: int) -> None:
        """Write frames until the file is large enough, or the partition's end is there."""
        end = self._part.end
        while writer.end < end and writer.bytes < file_bytes:
            for frame in self._next(writer.end):
                if writer.end >= end or writer.bytes >= file_bytes:
                    break
                if frame[0].base_offset > writer.end:
                    message = f"offsets {writer.end} to {frame[0].base_offset - 1} are missing"
                    raise CorruptError(message, where=self._label)
                header, body = cut(frame, writer.end, end)
                writer.write(header, body)
                self._progress.advance(header.last_offset_delta + 1, header.frame_length)

    def _next(self, offset: int) -> list[Any]:
        """The frames from an offset on; none: not yet."""
        part = self._part
        call = calls.fetch(
            Fetch(
                stream=self._manifest.stream,
                offset=offset,
                partition=self._number,
                bytes_max=_FETCH_BYTES,
                wait_ms_max=_WAIT_MS,
                incarnation=self._manifest.incarnation,
                log_epoch=part.epoch,
            ),
            where=self._log.server,
        )
        with self._explained(offset):
            try:
                fetched: Fetched | None = self._log.ask(call)
            except RefusedError as error:
                if error.code != "OUT_OF_RANGE" or _number(error, "earliest") > offset:
                    raise
                fetched = None  # a new leader does not know yet what was committed
        if fetched is not None and (fetched.frames or fetched.next_offset > offset):
            self._short_ns = None
            if fetched.log_epoch is None:
                message = f"{self._label}: logd does not say the epoch of what it sends (log_epoch)"
                raise AskRefusedError(message, fix="upgrade logd, and run the same command again")
            part.epoch = fetched.log_epoch
            return fetched.frames or [self._skipped(offset, min(fetched.next_offset, part.end))]
        self._check_short(offset)
        if fetched is None:
            time.sleep(self._pause_s)
        return []

    def _skipped(self, first: int, upto: int) -> Frame:
        """Return the frame that replaces a damaged range that the client was told to skip."""
        self._part.skipped.append([first, upto])
        return empty_frame(first, upto)

    def _check_short(self, offset: int) -> None:
        """Nothing came though the range goes on: that is not for long, or its end is lost."""
        now_ns = self._clock.monotonic_ns()
        if self._short_ns is None:
            self._short_ns = now_ns
        elif now_ns - self._short_ns > self._short_s * 1e9:
            what = f"{self._label}: nothing is committed from offset {offset} on, and when the"
            raise self._overtaken(f"{what} backup began it was up to {self._part.end}")

    @contextmanager
    def _explained(self, offset: int) -> Iterator[None]:
        try:
            yield
        except RefusedError as error:
            where = self._label
            match error.code:
                case "OUT_OF_RANGE":
                    upto = _number(error, "earliest")
                    message = f"{where}: offsets {offset} to {upto - 1} were deleted, by the"
                    message += " stream's limits or a purge, before they were copied"
                case "RECORDS_LOST":
                    begin = _number(error, "offset")
                    message = f"{where}: an election lost records from offset {begin} on, which"
                    message += " are in this backup already; others are there now"
                case "STREAM_RECREATED" | "UNKNOWN_STREAM":
                    message = f"{where}: the stream was deleted meanwhile"
                case _:
                    raise
            raise self._overtaken(message) from None

    def _overtaken(self, message: str) -> BackupOvertakenError:
        fix = f"this backup can never be finished: remove {self._directory} and begin again"
        return BackupOvertakenError(message, fix=fix)

    @property
    def _label(self) -> str:
        return f"{self._manifest.stream}/{self._number}"


def _number(error: RefusedError, key: str) -> int:
    return int(error.detail[key])


_SEND_BYTES: Final = 4 * 1024 * 1024

_AWAY: Final = ("UNAVAILABLE", "TOO_MANY_REQUESTS", "NOT_HERE")
_MODES: Final = tuple(
    option.name for option in stream_options() if option.option.change is Change.MODE
)
_LIMITS: Final = ("retention", "discard")
_GONE: Final = ("warm_standby",)
"""Options that backups of 0.1.0 name and streams have no more."""


@click.command(
    epilog="Example: penstock logd backup logs --to /backups/logs-2026-01-31",
)
@stream_argument()
@click.option(
    "--to",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="A directory that is not there yet, or what an earlier run was cut short in.",
)
@skip_damaged_option
@json_option("Say what was written as JSON.")
@server_option
def backup(stream: str, directory: Path, skip_damaged: bool, as_json: bool, server: str) -> None:
    """Copy STREAM, as it is committed now, into a directory.

    The stream goes on meanwhile. Offsets, timestamps, keys, headers and batches stay as they are;
    of an encrypted stream what is written is not encrypted. Cut short, the same command goes on.
    Exit code 65: what was to be copied is gone, or was lost in an election; begin again. With
    --skip-damaged: the backup is there, without what is damaged.
    """
    session = ReadSession(skip_damaged=skip_damaged)
    file_bytes = clients().file_bytes or FILE_BYTES
    with asking(server, session.client) as log, _disk(directory):
        manifest = _begin(log, stream, directory)
        total = sum(part.end - part.reached for part in manifest.partitions)
        with Progress("backing up", total) as progress:
            for number in range(len(manifest.partitions)):
                PartitionCopy(log, manifest, number, directory, progress).run(file_bytes)
        manifest.save(directory / MANIFEST)
        (directory / PARTIAL).unlink()
        sync_directories([directory])
    _print_result(manifest, directory, "in", as_json=as_json)
    check_none_skipped(_skipped(manifest))


@click.command(epilog="Example: penstock logd restore /backups/logs-2026-01-31 --as logs-old")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.option("--as", "name", metavar="STREAM", help="Its name. Default: as it was.")
@click.option("--subject", help="What it is to store from then on. Default: as it was.")
@click.option("--replication-factor", type=IntRange(min=1), help="Default: as it was.")
@click.option("--keep-retention", is_flag=True, help="With its limits: what is older goes at once.")
@click.option("--check", "only_check", is_flag=True, help="Only verify the backup.")
@click.option("--retry-s", default=60.0, show_default=True, help="For as long as logd is away.")
@json_option("Say what was restored as JSON.")
@server_option
def restore(  # noqa: PLR0913 - what is to come of it, and how
    *,
    directory: Path,
    name: str | None,
    subject: str | None,
    replication_factor: int | None,
    keep_retention: bool,
    only_check: bool,
    retry_s: float,
    as_json: bool,
    server: str,
) -> None:
    """Make a new stream of the backup in DIRECTORY, each record at the offset it had.

    Everything is verified first. The stream refuses publishers until all of it is there; cut
    short, the same command goes on. A stream that is there is never touched. Exit code 65: the
    backup is damaged.
    """
    manifest = _verified(directory)
    if only_check:
        _print_result(manifest, directory, "sound in", as_json=as_json)
        return
    with asking(server) as log:
        options = _options(log, manifest, keep_retention=keep_retention)
        options |= {} if replication_factor is None else {"replication_factor": replication_factor}
        wanted = name or manifest.stream
        made = _make(log, wanted, subject or manifest.subject, options, retry_s)
        with Progress("restoring", _records(manifest)) as progress:
            for part in made.partitions:
                sending = PartitionSender(log, wanted, part.partition, retry_s)
                _send(sending, manifest, sending.wanted(), directory, progress)
        check_restored(log, wanted, manifest, keep_retention=keep_retention)
    _print_result(manifest, directory, f"restored as {wanted} from", as_json=as_json)


# Backing up.


def _begin(log: LogClient, stream: str, directory: Path) -> Manifest:
    """Return the manifest to complete: an earlier run's, or one of the stream as it is now."""
    found = log.stream(stream)
    partitions_of(log, stream, ())
    now = _manifest(log, found)  # before anything is made: the stream may not be open
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    if (directory / MANIFEST).exists():
        raise click.UsageError(f"{directory} holds a backup: name another directory")
    try:
        begun = Manifest.load(directory / PARTIAL)
    except CorruptError as error:
        raise DamagedDataError(str(error), fix="remove the directory, and begin again") from None
    if begun is None:
        if any(directory.iterdir()):
            raise click.UsageError(f"{directory} is not empty: name another directory")
        begun = now
        begun.save(directory / PARTIAL)
    if (begun.stream, begun.incarnation) != (stream, found.incarnation):
        was = f"a backup of {begun.stream} ({begun.incarnation}) was begun in {directory}"
        raise click.UsageError(f"{was}, which is not this stream: name another directory")
    check_begun(begun, directory)
    return begun


def _manifest(log: LogClient, found: StreamInfo) -> Manifest:
    ranges = [log.offsets(found.name, part.partition) for part in found.partitions]
    return Manifest(
        release=release(),
        taken=datetime.fromtimestamp(SystemClock().unix_ns() / 1e9, UTC).isoformat(),
        stream=found.name,
        subject=found.subject,
        incarnation=found.incarnation,
        options=found.options,
        partitions=[BackupPartition(start, end) for start, end in ranges],
    )


@contextmanager
def _disk(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        fix = "see to the disk; the same command goes on where it stopped"
        raise OutputError(f"{directory} cannot be written: {reason}", fix=fix) from None


# Restoring.


def _verified(directory: Path) -> Manifest:
    """The manifest of a backup of which every byte was read."""
    fix = "take another backup; this one cannot be restored"
    try:
        manifest = Manifest.load(directory / MANIFEST) or _refuse_absent(directory)
        check_chain(manifest)
        with Progress("verifying", _records(manifest)) as progress:
            for part in manifest.partitions:
                for file in part.files:
                    for header, _ in frames_of(directory, file):
                        progress.advance(header.last_offset_delta + 1, header.frame_length)
    except (CorruptError, OSError) as error:
        raise DamagedDataError(str(error), fix=fix) from None
    except RefusedError as error:
        fix = "restore it with the release of Penstock that made it"
        raise AskRefusedError(f"{error} ({error.code})", fix=fix) from None
    return manifest


def _refuse_absent(directory: Path) -> NoReturn:
    if (directory / PARTIAL).exists():
        fix = "run penstock logd backup again, it goes on where it stopped"
        raise DamagedDataError(f"{directory}: the backup was cut short", fix=fix)
    raise DamagedDataError(f"{directory}: there is no backup", fix="name its directory")


def _options(log: LogClient, manifest: Manifest, *, keep_retention: bool) -> dict[str, Any]:
    """Return the options of the restored stream: the old ones without those that lose records."""
    alone = log.cluster().cluster is None
    left_out = {*_MODES, *_GONE, "partitions"} | (set() if keep_retention else {*_LIMITS})
    left_out |= set(ReplicationSettings.model_fields) if alone else set()
    options = {key: value for key, value in manifest.options.items() if key not in left_out}
    if len(manifest.partitions) > 1:
        options["partitions"] = len(manifest.partitions)
    return options | {
        "restore_from": [part.start for part in manifest.partitions],
        "restore_upto": [part.end for part in manifest.partitions],
    }


def _make(
    log: LogClient, name: str, subject: str, options: dict[str, Any], retry_s: float
) -> StreamInfo:
    """Make the stream, or find it as an earlier run has left it.

    Raises:
        AskRefusedError: Another one is there.
    """
    deadline_ns = SystemClock().monotonic_ns() + round(retry_s * 1e9)
    made = False
    while not made:
        try:
            made = bool(log.create_stream(name, subject, **options))
        except RefusedError as error:
            if error.code != "STREAM_DIFFERS":
                raise
            message = f"stream {name!r} is there, and is not what a restore of this backup makes"
            raise AskRefusedError(
                f"{message} ({error.code})", fix="restore it under another name: --as NAME"
            ) from None
        except UnavailableError:
            if SystemClock().monotonic_ns() > deadline_ns:
                raise
            time.sleep(_PAUSE_S)
    (current,) = [one for one in log.streams() if one.name == name]
    ends = options["restore_upto"]
    if any(ends) and all(part.end_offset >= ends[part.partition] for part in current.partitions):
        message = f"stream {name!r} is there, and all of the backup is in it"
        raise RefusedError("NOT_RESTORING", message)
    return current


class PartitionSender:
    """Sends frames to one partition, for as long as it takes.

    Args:
        log: Client of the log to restore to.
        stream: The new one.
        partition: Number of the partition.
        retry_s: Seconds that logd may be away.
        pause_s: Seconds before it is asked again.
    """

    def __init__(
        self,
        log: LogClient,
        stream: str,
        partition: int,
        retry_s: float,
        *,
        pause_s: float = _PAUSE_S,
    ) -> None:
        self.partition = partition
        self._log, self._stream = log, stream
        self._pause_s = pause_s
        self._retry_ns = round(retry_s * 1e9)

    def wanted(self) -> int:
        """The offset with which to go on, as the leader says; it is waited for.

        Raises:
            UnavailableError: No node leads the partition.
        """
        clock = SystemClock()
        deadline_ns = clock.monotonic_ns() + self._retry_ns
        while True:
            problem = f"nobody leads {self._stream}/{self.partition}"
            try:
                return self._log.offsets(self._stream, self.partition).end
            except UnavailableError as error:
                problem = str(error)
            except RefusedError as error:
                if error.code not in _AWAY:
                    raise
            if clock.monotonic_ns() > deadline_ns:
                raise UnavailableError(problem)
            time.sleep(self._pause_s)

    def send(self, frames: bytes, upto: int) -> None:
        """Send frames that end at an offset; on return they are committed.

        What only the leader has of them, of an earlier run, is waited for: it is committed soon,
        and not sent again, or lost with that leader.
        """
        clock = SystemClock()
        deadline_ns = clock.monotonic_ns() + self._retry_ns
        while True:
            try:
                self._log.ask(calls.restore(self._stream, self.partition, frames))
            except RefusedError as error:
                frames = self._left(frames, upto, error)
                if not frames:
                    return
                if clock.monotonic_ns() > deadline_ns:
                    raise
            except UnavailableError:
                if clock.monotonic_ns() > deadline_ns:
                    raise
            else:
                return
            time.sleep(self._pause_s)

    def _left(self, frames: bytes, upto: int, error: RefusedError) -> bytes:
        """Return the frames that remain to be sent after a refusal; empty: all are committed.

        Raises:
            RefusedError: The same error, if it does not pass.
        """
        wanted = error.detail.get("next_offset")
        if not isinstance(wanted, int):
            if error.code not in _AWAY:
                raise error
            return frames
        committed = self._committed()
        if committed is None or wanted > committed:  # if the leader is lost before, so are they
            return frames
        if wanted >= upto:
            return b""
        ahead = b"".join(
            encode_header(header) + body
            for header, body in parse_frames(frames)
            if header.base_offset >= wanted
        )
        if len(ahead) in (0, len(frames)):
            raise error
        if decode_header(ahead[:HEADER_SIZE]).base_offset != wanted:
            raise error
        return ahead

    def _committed(self) -> int | None:
        """The end of what is committed; None: no node says."""
        try:
            return self._log.offsets(self._stream, self.partition).end
        except (UnavailableError, RefusedError):
            return None


def _send(
    sending: PartitionSender, manifest: Manifest, begun: int, directory: Path, progress: Progress
) -> None:
    """Send what is not there yet, some frames at a time."""
    frames, upto = bytearray(), 0
    for file in manifest.partitions[sending.partition].files:
        for header, body in frames_of(directory, file):
            progress.advance(header.last_offset_delta + 1, header.frame_length)
            if header.base_offset < begun:
                continue
            if frames and len(frames) + header.frame_length > _SEND_BYTES:
                sending.send(bytes(frames), upto)
                frames.clear()
            frames += encode_header(header) + body
            upto = header.next_offset
    if frames:
        sending.send(bytes(frames), upto)


def check_restored(
    log: LogClient, stream: str, manifest: Manifest, *, keep_retention: bool
) -> None:
    """Look that what can be read now is what the backup has, but for what its limits let go."""
    for number, part in enumerate(manifest.partitions):
        start, end = log.offsets(stream, number)
        begins = part.start <= start if keep_retention else part.start == start
        if not begins or end < part.end:
            message = f"{stream}/{number} has {start} to {end}, not {part.start} to {part.end}"
            raise CorruptError(message)


def _records(manifest: Manifest) -> int:
    return sum(part.end - part.start for part in manifest.partitions)


def _skipped(manifest: Manifest) -> list[dict[str, Any]]:
    """Return the ranges that a backup lacks because they were damaged."""
    return [
        {"stream": manifest.stream, "partition": number, "first": first, "upto": upto}
        for number, part in enumerate(manifest.partitions)
        for first, upto in part.skipped
    ]


def _print_result(manifest: Manifest, directory: Path, how: str, *, as_json: bool) -> None:
    files = [file for part in manifest.partitions for file in part.files]
    records, size = sum(file.records for file in files), sum(file.bytes for file in files)
    ranges = [[part.start, part.end] for part in manifest.partitions]
    skipped = _skipped(manifest)
    if as_json:
        facts: dict[str, Any] = {"stream": manifest.stream, "directory": str(directory)}
        facts |= {"partitions": ranges, "records": records, "bytes": size}
        echo_json(facts | ({"skipped": skipped} if skipped else {}))
        return
    where = ", ".join(
        f"{manifest.stream}/{number} from offset {start} to {end}"
        for number, (start, end) in enumerate(ranges)
    )
    count = pluralize(records, "record", form=",")
    click.echo(f"{count} of {where}: {how} {directory} ({human_bytes(size)})")
    if skipped and how != "in":  # the backup itself says so on standard error
        count = sum(one["upto"] - one["first"] for one in skipped)
        click.echo(f"{pluralize(count, 'offset', form=',')} were damaged before, and are not in it")
