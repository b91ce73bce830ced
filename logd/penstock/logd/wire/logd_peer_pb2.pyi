from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Purpose(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MESSAGES: _ClassVar[Purpose]
    REPLICATION: _ClassVar[Purpose]
MESSAGES: Purpose
REPLICATION: Purpose

class Hello(_message.Message):
    __slots__ = ("version", "cluster", "node", "to", "purpose")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    version: int
    cluster: str
    node: str
    to: str
    purpose: Purpose
    def __init__(self, version: _Optional[int] = ..., cluster: _Optional[str] = ..., node: _Optional[str] = ..., to: _Optional[str] = ..., purpose: _Optional[_Union[Purpose, str]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("code", "message", "detail")
    class DetailEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    detail: _containers.ScalarMap[str, str]
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., detail: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("id", "api", "body")
    ID_FIELD_NUMBER: _ClassVar[int]
    API_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    id: int
    api: str
    body: bytes
    def __init__(self, id: _Optional[int] = ..., api: _Optional[str] = ..., body: _Optional[bytes] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("id", "body", "refused")
    ID_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    id: int
    body: bytes
    refused: Refused
    def __init__(self, id: _Optional[int] = ..., body: _Optional[bytes] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ...) -> None: ...
