from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EntryKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENTRY_KIND_COMMAND: _ClassVar[EntryKind]
    ENTRY_KIND_NOOP: _ClassVar[EntryKind]
    ENTRY_KIND_MEMBERSHIP: _ClassVar[EntryKind]
ENTRY_KIND_COMMAND: EntryKind
ENTRY_KIND_NOOP: EntryKind
ENTRY_KIND_MEMBERSHIP: EntryKind

class Entry(_message.Message):
    __slots__ = ("index", "term", "kind", "data")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    index: int
    term: int
    kind: EntryKind
    data: bytes
    def __init__(self, index: _Optional[int] = ..., term: _Optional[int] = ..., kind: _Optional[_Union[EntryKind, str]] = ..., data: _Optional[bytes] = ...) -> None: ...

class VoteRequest(_message.Message):
    __slots__ = ("pre", "transfer", "last_index", "last_term")
    PRE_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_TERM_FIELD_NUMBER: _ClassVar[int]
    pre: bool
    transfer: bool
    last_index: int
    last_term: int
    def __init__(self, pre: _Optional[bool] = ..., transfer: _Optional[bool] = ..., last_index: _Optional[int] = ..., last_term: _Optional[int] = ...) -> None: ...

class VoteResponse(_message.Message):
    __slots__ = ("pre", "granted")
    PRE_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    pre: bool
    granted: bool
    def __init__(self, pre: _Optional[bool] = ..., granted: _Optional[bool] = ...) -> None: ...

class AppendRequest(_message.Message):
    __slots__ = ("previous_index", "previous_term", "entries", "commit")
    PREVIOUS_INDEX_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_TERM_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    previous_index: int
    previous_term: int
    entries: _containers.RepeatedCompositeFieldContainer[Entry]
    commit: int
    def __init__(self, previous_index: _Optional[int] = ..., previous_term: _Optional[int] = ..., entries: _Optional[_Iterable[_Union[Entry, _Mapping]]] = ..., commit: _Optional[int] = ...) -> None: ...

class AppendResponse(_message.Message):
    __slots__ = ("index",)
    INDEX_FIELD_NUMBER: _ClassVar[int]
    index: int
    def __init__(self, index: _Optional[int] = ...) -> None: ...

class AppendRejection(_message.Message):
    __slots__ = ("previous_index", "hint_index", "hint_term")
    PREVIOUS_INDEX_FIELD_NUMBER: _ClassVar[int]
    HINT_INDEX_FIELD_NUMBER: _ClassVar[int]
    HINT_TERM_FIELD_NUMBER: _ClassVar[int]
    previous_index: int
    hint_index: int
    hint_term: int
    def __init__(self, previous_index: _Optional[int] = ..., hint_index: _Optional[int] = ..., hint_term: _Optional[int] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("commit", "round")
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    commit: int
    round: int
    def __init__(self, commit: _Optional[int] = ..., round: _Optional[int] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("round",)
    ROUND_FIELD_NUMBER: _ClassVar[int]
    round: int
    def __init__(self, round: _Optional[int] = ...) -> None: ...

class SnapshotChunk(_message.Message):
    __slots__ = ("index", "index_term", "membership", "total_bytes", "offset", "data")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    INDEX_TERM_FIELD_NUMBER: _ClassVar[int]
    MEMBERSHIP_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    index: int
    index_term: int
    membership: bytes
    total_bytes: int
    offset: int
    data: bytes
    def __init__(self, index: _Optional[int] = ..., index_term: _Optional[int] = ..., membership: _Optional[bytes] = ..., total_bytes: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class SnapshotResponse(_message.Message):
    __slots__ = ("index", "offset")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    index: int
    offset: int
    def __init__(self, index: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class ReadResponse(_message.Message):
    __slots__ = ("number", "index")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    number: int
    index: int
    def __init__(self, number: _Optional[int] = ..., index: _Optional[int] = ...) -> None: ...

class TimeoutNow(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Message(_message.Message):
    __slots__ = ("group", "sender", "recipient", "term", "disk", "recipient_disk", "vote_request", "vote_response", "append_request", "append_response", "append_rejection", "heartbeat", "heartbeat_response", "snapshot_chunk", "snapshot_response", "read_request", "read_response", "timeout_now")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    RECIPIENT_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    DISK_FIELD_NUMBER: _ClassVar[int]
    RECIPIENT_DISK_FIELD_NUMBER: _ClassVar[int]
    VOTE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    VOTE_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    APPEND_REQUEST_FIELD_NUMBER: _ClassVar[int]
    APPEND_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    APPEND_REJECTION_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_CHUNK_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    READ_REQUEST_FIELD_NUMBER: _ClassVar[int]
    READ_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_NOW_FIELD_NUMBER: _ClassVar[int]
    group: str
    sender: str
    recipient: str
    term: int
    disk: str
    recipient_disk: str
    vote_request: VoteRequest
    vote_response: VoteResponse
    append_request: AppendRequest
    append_response: AppendResponse
    append_rejection: AppendRejection
    heartbeat: Heartbeat
    heartbeat_response: HeartbeatResponse
    snapshot_chunk: SnapshotChunk
    snapshot_response: SnapshotResponse
    read_request: ReadRequest
    read_response: ReadResponse
    timeout_now: TimeoutNow
    def __init__(self, group: _Optional[str] = ..., sender: _Optional[str] = ..., recipient: _Optional[str] = ..., term: _Optional[int] = ..., disk: _Optional[str] = ..., recipient_disk: _Optional[str] = ..., vote_request: _Optional[_Union[VoteRequest, _Mapping]] = ..., vote_response: _Optional[_Union[VoteResponse, _Mapping]] = ..., append_request: _Optional[_Union[AppendRequest, _Mapping]] = ..., append_response: _Optional[_Union[AppendResponse, _Mapping]] = ..., append_rejection: _Optional[_Union[AppendRejection, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., heartbeat_response: _Optional[_Union[HeartbeatResponse, _Mapping]] = ..., snapshot_chunk: _Optional[_Union[SnapshotChunk, _Mapping]] = ..., snapshot_response: _Optional[_Union[SnapshotResponse, _Mapping]] = ..., read_request: _Optional[_Union[ReadRequest, _Mapping]] = ..., read_response: _Optional[_Union[ReadResponse, _Mapping]] = ..., timeout_now: _Optional[_Union[TimeoutNow, _Mapping]] = ...) -> None: ...
