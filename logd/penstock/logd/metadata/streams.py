"""Catalog of streams: a state machine that applies commands and can be persisted.

A deleted stream is first marked as such, so that a crash between that and the removal of its data
leaves no doubt what the operator wanted; the data of a stream that is not marked is never removed.
"""

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from annotated_types import Ge, Le, Lt, MaxLen
from msgspec import Struct

from penstock.logd.errors import CorruptError, RefusedError
from penstock.logd.format.subjects import SubjectTrie, check_stream_subject, is_reserved
from penstock.logd.limits import (
    PARTITIONS_PER_STREAM_MAX,
    STREAM_NAME_LENGTH_MAX,
    STREAMS_MAX,
)
from penstock.logd.metadata.option import Change, Option
from penstock.logd.metadata.retention_policy import NO_LIMITS, Discard, Retention

FsyncPolicy = Literal["commit", "interval", "never"]
AckPolicy = Literal["all", "leader", "none"]
Encryption = Literal["none", "aes-256-gcm"]

INTERNAL_PREFIX: Final = "__"
"""Names that begin so are logd's own streams: they store no subject."""

_RESTORE: Final = ("restore_from", "restore_upto")
_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")


_MIB: Final = 1024 * 1024
_Offset = Annotated[int, Ge(0), Lt(1 << 62)]
_DAY_S: Final = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig:
    """A stream as an operator asks for it: each field is an option, declared here and nowhere else.

    The bounds are those of what users ask for; a stream of logd's own may be beyond them.
    """

    name: str
    subject: str
    ack_on_reply: Annotated[
        bool,
        Option("Whether plain messages with a reply subject are answered there."),
    ] = True
    ack_policy: Annotated[
        AckPolicy,
        Option(
            "When a plain message is acked: in-sync replicas have it (`all`), the"
            " leader has (`leader`), never (`none`). Refusals are sent in any case."
        ),
    ] = "all"
    fsync: Annotated[
        FsyncPolicy,
        Option(
            "When a record is on the disk: before its ack (`commit`), every"
            " `fsync_interval_ms` (`interval`), when the operating system likes (`never`). With the"
            " latter two a power loss can take acked records."
        ),
    ] = "commit"
    fsync_interval_ms: Annotated[
        int, Ge(1), Le(3_600_000), Option("Milliseconds between syncs, for `interval`.")
    ] = 1000
    max_message_bytes: Annotated[
        int, Ge(1024), Le(32 * _MIB), Option("Bytes of one message, headers included.")
    ] = 8 * _MIB
    max_header_bytes: Annotated[
        int, Ge(256), Le(_MIB), Option("Bytes of one message's headers.")
    ] = 64 * 1024
    max_header_pairs: Annotated[int, Ge(1), Le(4096), Option("Header lines of one message.")] = 256
    max_key_bytes: Annotated[int, Ge(1), Le(64 * 1024), Option("Bytes of a record's key.")] = 4096
    max_batch_rows: Annotated[int, Ge(1), Le(1 << 24), Option("Records of one batch.")] = 131_072
    max_batch_decoded_bytes: Annotated[
        int, Ge(1024), Le(64 * _MIB), Option("Bytes that one batch may decode to.")
    ] = 64 * _MIB
    max_intake_bytes: Annotated[
        int | None,
        Ge(64 * 1024),
        Le(64 * 1024 * _MIB),
        Option(
            "Bytes of its messages that may wait for the disk. Without it: half of the daemon's."
        ),
    ] = None
    max_segment_bytes: Annotated[
        int,
        Ge(64 * 1024),
        Le(1024 * _MIB),
        Option(
            "Bytes at which a segment file is closed and the next one begun.",
            liftbridge="segmentMaxBytes",
            clamped=True,
        ),
    ] = 256 * _MIB
    dedup_window_s: Annotated[
        int,
        Ge(0),
        Le(_DAY_S),
        Option("Seconds for which a `Nats-Msg-Id` is kept; 0: none is."),
    ] = 120
    max_dedup_entries: Annotated[
        int,
        Ge(1),
        Le(100_000_000),
        Option("Maximum ids kept; beyond it the oldest is dropped before its time."),
    ] = 1_000_000
    producer_expiry_s: Annotated[
        int,
        Ge(60),
        Le(365 * _DAY_S),
        Option("Seconds for which an idle producer's sequence is kept."),
    ] = 7 * _DAY_S
    max_producers: Annotated[
        int,
        Ge(1),
        Le(10_000_000),
        Option("Maximum producers kept; beyond it the one idle longest is dropped."),
    ] = 100_000
    retention: Retention = NO_LIMITS
    discard: Annotated[
        Discard,
        Option(
            "What makes room at the limits in bytes and messages: `old` deletes the"
            " oldest records, `new` refuses new ones."
        ),
    ] = "old"
    compact: Annotated[
        bool,
        Option("Whether only the last record of each key is kept.", liftbridge="compactEnabled"),
    ] = False
    tombstone_retention_s: Annotated[
        int,
        Ge(0),
        Le(10 * 365 * _DAY_S),
        Option("Seconds for which a tombstone is kept after what it deletes is gone."),
    ] = _DAY_S
    expected_offset: Annotated[
        bool,
        Option(
            "Whether a Liftbridge publisher gets the offset it expects, or a refusal.",
            liftbridge="optimisticConcurrencyControl",
        ),
    ] = False
    encryption: Annotated[
        Encryption,
        Option(
            "How its records are encrypted on disk; cannot be changed.",
            change=Change.CREATE,
            liftbridge="encryption",
        ),
    ] = "none"
    restore_from: Annotated[
        tuple[_Offset, ...],
        MaxLen(PARTITIONS_PER_STREAM_MAX),
        Option(
            "Of a stream made by `penstock logd restore`: by partition, the first offset it has.",
            change=Change.RESTORE,
        ),
    ] = ()
    restore_upto: Annotated[
        tuple[_Offset, ...],
        MaxLen(PARTITIONS_PER_STREAM_MAX),
        Option(
            "By partition, the offset up to which only its backup writes;"
            " `streams alter --end-restore` ends that.",
            change=Change.RESTORE,
        ),
    ] = ()

    def restored_range(self, partition: int) -> tuple[int, int]:
        """The offsets of a partition that come from a backup; (0, 0): none do."""
        if partition >= len(self.restore_from):
            return 0, 0
        return self.restore_from[partition], self.restore_upto[partition]

    @property
    def deleting(self) -> Retention:
        """The limits that delete records."""
        return self.retention if self.discard == "old" else self.retention.by_age()


class Owner(Struct, frozen=True):
    """Principal to whose quota a new stream counts.

    Attributes:
        name: Its name; empty: none.
        max_streams: Maximum streams that it may have; None: unlimited.
    """

    name: str = ""
    max_streams: int | None = None


NOBODY: Final = Owner()


class StreamState(StrEnum):
    """State of a stream."""

    OPEN = "open"
    DELETING = "deleting"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A stream that exists.

    Attributes:
        incarnation: Differs from that of any earlier stream of the name.
        creator: Principal to whose quota it counts; empty: none.
    """

    config: StreamConfig
    incarnation: str
    state: StreamState = StreamState.OPEN
    creator: str = ""


class Metadata:
    """Every stream of this logd, and which of them store a subject."""

    def __init__(self) -> None:
        self._streams: dict[str, Stream] = {}
        self._trie: SubjectTrie[str] = SubjectTrie()

    @classmethod
    def of(cls, streams: Iterable[Stream]) -> "Metadata":
        """The state with these streams."""
        metadata = cls()
        for stream in streams:
            metadata._put(stream)
        return metadata

    @classmethod
    def restore(cls, document: dict[str, Any]) -> "Metadata":
        """The state that `snapshot` wrote down.

        Raises:
            CorruptError: The document is not such a state.
        """
        metadata = cls()
        known = {field.name for field in fields(StreamConfig)}
        try:
            for item in document["streams"]:
                config = {key: value for key, value in item["config"].items() if key in known}
                config |= {key: tuple(config.get(key, ())) for key in _RESTORE}
                retention = Retention(**config.pop("retention", {}))
                stream = Stream(
                    config=StreamConfig(**config, retention=retention),
                    incarnation=item["incarnation"],
                    state=StreamState(item["state"]),
                    creator=str(item.get("creator", "")),
                )
                metadata._put(stream)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptError(f"stream metadata is not understood: {error!r}") from None
        return metadata

    def snapshot(self) -> dict[str, Any]:
        """The whole state as a JSON document."""
        return {"version": 1, "streams": [asdict(stream) for stream in self._streams.values()]}

    def streams(self) -> Iterable[Stream]:
        """The open streams, by name."""
        return [stream for _, stream in sorted(self._streams.items()) if _is_open(stream)]

    def deleting(self) -> Iterable[Stream]:
        """The streams whose data is still to be removed."""
        return [stream for stream in self._streams.values() if not _is_open(stream)]

    def get(self, name: str) -> Stream:
        """One open stream.

        Raises:
            RefusedError: `UNKNOWN_STREAM`.
        """
        stream = self._streams.get(name)
        if stream is None or not _is_open(stream):
            raise RefusedError("UNKNOWN_STREAM", f"there is no stream {name!r}", stream=name)
        return stream

    def knows(self, name: str) -> bool:
        stream = self._streams.get(name)
        return stream is not None and _is_open(stream)

    def match(self, subject: str) -> tuple[str, ...]:
        """Names of the open streams that store what is published on a subject."""
        return () if is_reserved(subject) else self._trie.match(subject)

    def create(
        self,
        config: StreamConfig,
        incarnation: str,
        *,
        max_streams: int = STREAMS_MAX,
        owner: Owner = NOBODY,
    ) -> tuple[Stream, bool]:
        """Create a stream, or find one created with the same configuration.

        An internal stream has a name with `INTERNAL_PREFIX` and no subject; names from users are
        checked with `check_stream_name`.

        Returns:
            The stream and whether it is new.

        Raises:
            RefusedError: `BAD_NAME`, `BAD_SUBJECT`, `STREAM_DIFFERS`, `TOO_MANY_STREAMS`,
                `QUOTA_EXCEEDED`.
        """
        if not is_internal(config.name):
            check_stream_name(config.name)
            check_stream_subject(config.subject, ack_on_reply=config.ack_on_reply)
        present = self._streams.get(config.name)
        if present is not None:
            if present.config == config and _is_open(present):
                return present, False
            raise RefusedError(
                "STREAM_DIFFERS",
                f"stream {config.name!r} exists with {_difference(present, config)}",
                stream=config.name,
            )
        if len(self._streams) >= max_streams:
            raise RefusedError("TOO_MANY_STREAMS", f"there are {max_streams} streams already")
        self._check_quota(owner)
        stream = Stream(config=config, incarnation=incarnation, creator=owner.name)
        self._put(stream)
        return stream, True

    def alter(self, config: StreamConfig) -> bool:
        """Change an open stream's options; whether there was anything to change.

        Raises:
            RefusedError: `UNKNOWN_STREAM`; `BAD_SUBJECT` when it must not ack; `STREAM_DIFFERS`
                when the subject or the encryption would change.
        """
        if not is_internal(config.name):
            check_stream_subject(config.subject, ack_on_reply=config.ack_on_reply)
        present = self.get(config.name)
        config = _restored_as(present.config, config)
        for key in ("subject", "encryption"):
            old, new = getattr(present.config, key), getattr(config, key)
            if old != new:
                message = f"stream {config.name!r}: {key} {old!r} cannot be changed to {new!r}"
                raise RefusedError("STREAM_DIFFERS", message, stream=config.name)
        self._streams[config.name] = replace(present, config=config)
        return present.config != config

    def mark_deleted(self, name: str) -> Stream:
        """Begin the deletion of a stream: nothing stores to it or reads it any more.

        Raises:
            RefusedError: `UNKNOWN_STREAM`.
        """
        stream = self.get(name)
        if not is_internal(name):
            self._trie.remove(stream.config.subject, name)
        self._streams[name] = replace(stream, state=StreamState.DELETING)
        return self._streams[name]

    def forget(self, name: str) -> None:
        """End the deletion of a stream: its data is out of the way."""
        assert not _is_open(self._streams[name])
        del self._streams[name]

    def _check_quota(self, owner: Owner) -> None:
        if owner.max_streams is None:
            return
        present = sum(one.creator == owner.name and _is_open(one) for one in self._streams.values())
        if present >= owner.max_streams:
            message = f"{owner.name!r} has created {present} streams, of at most"
            raise RefusedError(
                "QUOTA_EXCEEDED", f"{message} {owner.max_streams}", limit=owner.max_streams
            )

    def _put(self, stream: Stream) -> None:
        self._streams[stream.config.name] = stream
        if _is_open(stream) and not is_internal(stream.config.name):
            self._trie.insert(stream.config.subject, stream.config.name)


def _restored_as(present: StreamConfig, wanted: StreamConfig) -> StreamConfig:
    """Return the wanted configuration, with the ranges of a stream's backup; they can only end.

    They are ended with an end that is the beginning: the log begins where it does, and is complete
    with what is in it.
    """
    begun = present.restore_from
    ended = bool(begun) and (wanted.restore_from, wanted.restore_upto) == (begun, begun)
    upto = begun if ended else present.restore_upto
    return replace(wanted, restore_from=begun, restore_upto=upto)


def is_internal(name: str) -> bool:
    return name.startswith(INTERNAL_PREFIX)


def check_stream_name(name: str) -> None:
    """Check the name of a user's stream; it becomes part of a path and of subjects.

    Raises:
        RefusedError: `BAD_NAME`, `RESERVED_NAME`.
    """
    if not _NAME.fullmatch(name) or len(name) > STREAM_NAME_LENGTH_MAX:
        raise RefusedError(
            "BAD_NAME",
            f"stream name {name[:80]!r}: 1 to {STREAM_NAME_LENGTH_MAX} of A-Z a-z 0-9 _ -",
        )
    check_not_internal(name)


def check_not_internal(name: str) -> None:
    """Refuse to let users touch what is logd's own.

    Raises:
        RefusedError: `RESERVED_NAME`.
    """
    if is_internal(name):
        message = f"stream {name!r}: names that begin with {INTERNAL_PREFIX} are logd's own"
        raise RefusedError("RESERVED_NAME", message, stream=name)


def _is_open(stream: Stream) -> bool:
    return stream.state is StreamState.OPEN


def _difference(present: Stream, config: StreamConfig) -> str:
    if not _is_open(present):
        return "its deletion not finished"
    old, new = _options(present.config), _options(config)
    return ", ".join(
        f"{key} {_shown(old[key])}, not {_shown(new[key])}" for key in old if old[key] != new[key]
    )


def _options(config: StreamConfig) -> dict[str, Any]:
    """The options of a stream, those of its retention among them, by name."""
    options = asdict(config)
    return options | {f"retention.{key}": value for key, value in options.pop("retention").items()}


def _shown(value: object) -> str:
    """An option's value for people."""
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else str(value)


ACTIVITY: Final = "__activity"


def activity_stream(*, bytes_max: int, age_s: int) -> StreamConfig:
    """Return the configuration of the activity stream.

    An event is known by its id for an hour: a node that could not write it for so long may write it
    a second time.
    """
    return StreamConfig(
        name=ACTIVITY,
        subject="",
        ack_on_reply=False,
        max_segment_bytes=16 * 1024 * 1024,
        dedup_window_s=3600,
        max_dedup_entries=100_000,
        retention=Retention(age_s=age_s, bytes=bytes_max),
    )
