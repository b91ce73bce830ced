from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Refusal(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REFUSAL_UNSPECIFIED: _ClassVar[Refusal]
    REFUSAL_OLDER_EPOCH: _ClassVar[Refusal]
    REFUSAL_NEWER_EPOCH: _ClassVar[Refusal]
    REFUSAL_NOT_LEADER: _ClassVar[Refusal]
    REFUSAL_NOT_REPLICA: _ClassVar[Refusal]
    REFUSAL_INCARNATION: _ClassVar[Refusal]
REFUSAL_UNSPECIFIED: Refusal
REFUSAL_OLDER_EPOCH: Refusal
REFUSAL_NEWER_EPOCH: Refusal
REFUSAL_NOT_LEADER: Refusal
REFUSAL_NOT_REPLICA: Refusal
REFUSAL_INCARNATION: Refusal

class Partition(_message.Message):
    __slots__ = ("incarnation", "number")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    number: int
    def __init__(self, incarnation: _Optional[str] = ..., number: _Optional[int] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("session", "number", "taken", "fetches", "forgotten")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    FETCHES_FIELD_NUMBER: _ClassVar[int]
    FORGOTTEN_FIELD_NUMBER: _ClassVar[int]
    session: int
    number: int
    taken: int
    fetches: _containers.RepeatedCompositeFieldContainer[Fetch]
    forgotten: _containers.RepeatedCompositeFieldContainer[Partition]
    def __init__(self, session: _Optional[int] = ..., number: _Optional[int] = ..., taken: _Optional[int] = ..., fetches: _Optional[_Iterable[_Union[Fetch, _Mapping]]] = ..., forgotten: _Optional[_Iterable[_Union[Partition, _Mapping]]] = ...) -> None: ...

class Fetch(_message.Message):
    __slots__ = ("partition", "boot", "number", "leader_epoch", "offset", "last_epoch", "synced", "whole", "wants", "known", "settled", "version", "dedup")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BOOT_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    SYNCED_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    WANTS_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DEDUP_FIELD_NUMBER: _ClassVar[int]
    partition: Partition
    boot: str
    number: int
    leader_epoch: int
    offset: int
    last_epoch: int
    synced: int
    whole: bool
    wants: bool
    known: int
    settled: bool
    version: int
    dedup: DedupMark
    def __init__(self, partition: _Optional[_Union[Partition, _Mapping]] = ..., boot: _Optional[str] = ..., number: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., offset: _Optional[int] = ..., last_epoch: _Optional[int] = ..., synced: _Optional[int] = ..., whole: _Optional[bool] = ..., wants: _Optional[bool] = ..., known: _Optional[int] = ..., settled: _Optional[bool] = ..., version: _Optional[int] = ..., dedup: _Optional[_Union[DedupMark, _Mapping]] = ...) -> None: ...

class DedupMark(_message.Message):
    __slots__ = ("offset", "checksum", "saved")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    SAVED_FIELD_NUMBER: _ClassVar[int]
    offset: int
    checksum: int
    saved: bool
    def __init__(self, offset: _Optional[int] = ..., checksum: _Optional[int] = ..., saved: _Optional[bool] = ...) -> None: ...

class Response(_message.Message):
    __slots__ = ("session", "number", "parts")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    session: int
    number: int
    parts: _containers.RepeatedCompositeFieldContainer[Part]
    def __init__(self, session: _Optional[int] = ..., number: _Optional[int] = ..., parts: _Optional[_Iterable[_Union[Part, _Mapping]]] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("partition", "boot", "number", "leader_epoch", "frames_length", "frames", "diverged", "out_of_range", "refused")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BOOT_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    FRAMES_LENGTH_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    DIVERGED_FIELD_NUMBER: _ClassVar[int]
    OUT_OF_RANGE_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    partition: Partition
    boot: str
    number: int
    leader_epoch: int
    frames_length: int
    frames: Frames
    diverged: Diverged
    out_of_range: OutOfRange
    refused: Refused
    def __init__(self, partition: _Optional[_Union[Partition, _Mapping]] = ..., boot: _Optional[str] = ..., number: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., frames_length: _Optional[int] = ..., frames: _Optional[_Union[Frames, _Mapping]] = ..., diverged: _Optional[_Union[Diverged, _Mapping]] = ..., out_of_range: _Optional[_Union[OutOfRange, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ...) -> None: ...

class Frames(_message.Message):
    __slots__ = ("offset", "upto", "high_watermark", "log_start", "catching_up", "dedup_differs")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    UPTO_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    LOG_START_FIELD_NUMBER: _ClassVar[int]
    CATCHING_UP_FIELD_NUMBER: _ClassVar[int]
    DEDUP_DIFFERS_FIELD_NUMBER: _ClassVar[int]
    offset: int
    upto: int
    high_watermark: int
    log_start: int
    catching_up: bool
    dedup_differs: bool
    def __init__(self, offset: _Optional[int] = ..., upto: _Optional[int] = ..., high_watermark: _Optional[int] = ..., log_start: _Optional[int] = ..., catching_up: _Optional[bool] = ..., dedup_differs: _Optional[bool] = ...) -> None: ...

class Diverged(_message.Message):
    __slots__ = ("epoch", "end_offset", "log_start")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_START_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    end_offset: int
    log_start: int
    def __init__(self, epoch: _Optional[int] = ..., end_offset: _Optional[int] = ..., log_start: _Optional[int] = ...) -> None: ...

class OutOfRange(_message.Message):
    __slots__ = ("log_start",)
    LOG_START_FIELD_NUMBER: _ClassVar[int]
    log_start: int
    def __init__(self, log_start: _Optional[int] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: Refusal
    def __init__(self, reason: _Optional[_Union[Refusal, str]] = ...) -> None: ...

class DedupRequest(_message.Message):
    __slots__ = ("partition", "leader_epoch", "snapshot", "position")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    partition: Partition
    leader_epoch: int
    snapshot: int
    position: int
    def __init__(self, partition: _Optional[_Union[Partition, _Mapping]] = ..., leader_epoch: _Optional[int] = ..., snapshot: _Optional[int] = ..., position: _Optional[int] = ...) -> None: ...

class RangeRequest(_message.Message):
    __slots__ = ("partition", "first", "upto", "position")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    UPTO_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    partition: Partition
    first: int
    upto: int
    position: int
    def __init__(self, partition: _Optional[_Union[Partition, _Mapping]] = ..., first: _Optional[int] = ..., upto: _Optional[int] = ..., position: _Optional[int] = ...) -> None: ...
