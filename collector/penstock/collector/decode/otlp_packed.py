"""OTLP's log requests once more, with attributes that stay packed: each is its bytes.

Records of one program have the same attributes again and again. As bytes they can be known, and to
take them out of a request costs a tenth of what objects for them do. The schema is made of OTLP's
own: names, numbers and types are those of its fields.
"""

from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.descriptor_pool import Default
from google.protobuf.message_factory import GetMessageClass
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs

_PACKAGE: Final = "penstock.otlp.packed"
_FILE: Final = "penstock/otlp/packed.proto"


def unpack_records(body: bytes) -> list[list[Any]]:
    """The log records of each scope of each resource; what they lie in holds nothing else here.

    Args:
        body: Of an ``ExportLogsServiceRequest`` that can be read.
    """
    request: Any = _REQUEST()
    request.ParseFromString(body)
    return [[scope.log_records for scope in one.scope_logs] for one in request.resource_logs]


def _message(file: FileDescriptorProto, of: Descriptor, *fields: str) -> None:
    """A message with some fields of another."""
    made = file.message_type.add(name=of.name)
    for name in fields:
        _field(made, of.fields_by_name[name])


def _field(made: DescriptorProto, of: FieldDescriptor) -> None:
    inner = of.message_type
    field = made.field.add(name=of.name, number=of.number, type=of.type)
    field.label = (
        FieldDescriptorProto.LABEL_REPEATED
        if of.is_repeated
        else FieldDescriptorProto.LABEL_OPTIONAL
    )
    if inner is not None and inner.name == "KeyValue":
        field.type = FieldDescriptorProto.TYPE_BYTES
    elif inner is not None:
        ours = inner.name in {"ResourceLogs", "ScopeLogs", "LogRecord"}
        field.type_name = f".{_PACKAGE}.{inner.name}" if ours else f".{inner.full_name}"
    elif of.enum_type is not None:
        field.type = FieldDescriptorProto.TYPE_INT32


def _made() -> type[Any]:
    file = FileDescriptorProto(name=_FILE, package=_PACKAGE, syntax="proto3")
    file.dependency.append(common_pb2.DESCRIPTOR.name)
    _message(file, ExportLogsServiceRequest.DESCRIPTOR, "resource_logs")
    _message(file, ResourceLogs.DESCRIPTOR, "scope_logs")
    _message(file, ScopeLogs.DESCRIPTOR, "log_records")
    _message(file, LogRecord.DESCRIPTOR, *LogRecord.DESCRIPTOR.fields_by_name)
    pool = Default()
    pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.ExportLogsServiceRequest"))


_REQUEST: Final = _made()
