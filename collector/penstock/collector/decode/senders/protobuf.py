"""Protobuf messages that are described here, as far as they are read.

Fields that are left out of a description are skipped, as protobuf skips every unknown field. A text
may be described as bytes: senders that are not strict about UTF-8 are then read all the same.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from penstock.collector.errors import RemoteProtocolError


class Field(NamedTuple):
    """A field: its number, its scalar type or the name of its message, whether it is repeated."""

    number: int
    kind: str
    is_repeated: bool = False


def describe(package: str, messages: Mapping[str, Mapping[str, Field]]) -> dict[str, type[Any]]:
    """Make the classes of messages, given their fields by name; in proto3."""
    file = FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, fields in messages.items():
        made = file.message_type.add(name=name)
        for field_name, field in fields.items():
            described = made.field.add(name=field_name, number=field.number)
            described.label = _REPEATED if field.is_repeated else _OPTIONAL
            if field.kind in messages:
                described.type = FieldDescriptorProto.TYPE_MESSAGE
                described.type_name = f".{package}.{field.kind}"
            else:
                described.type = FieldDescriptorProto.Type.Value(f"TYPE_{field.kind.upper()}")
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {
        name: GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages
    }


def parse(message: type[Any], body: bytes) -> Any:
    """A message.

    Raises:
        RemoteProtocolError: The bytes are none.
    """
    parsed = message()
    try:
        parsed.ParseFromString(body)
    except DecodeError:
        name = message.DESCRIPTOR.name
        raise RemoteProtocolError(f"not a protobuf {name}") from None
    return parsed


_REPEATED: Final = FieldDescriptorProto.LABEL_REPEATED
_OPTIONAL: Final = FieldDescriptorProto.LABEL_OPTIONAL
