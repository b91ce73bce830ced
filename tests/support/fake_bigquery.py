"""A fake of BigQuery's Storage Write API, written from its reference, with Google's own messages.

"BigQueryWrite" (v1): streams of type COMMITTED, whose rows are seen as soon as they are appended;
an append at an offset that is not the stream's end is refused, one with a row that is wrong as a
whole, one to a stream that is finalized always. A row is read by the schema that comes with it,
and must fit the table.
"""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent import futures
from functools import partial
from typing import Any, Final

import grpc
from google.cloud.bigquery_storage_v1 import types
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError
from google.rpc import code_pb2, status_pb2

from tests.support.fake_google import PROJECT, google_account

TABLE: Final = f"{PROJECT}.telemetry.records"
_PATH: Final = f"projects/{PROJECT}/datasets/telemetry/tables/records"
_INT: Final = descriptor_pb2.FieldDescriptorProto.TYPE_INT64
_TEXT: Final = descriptor_pb2.FieldDescriptorProto.TYPE_STRING
_BYTES: Final = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES
SCHEMA: Final = {
    "stream": _TEXT, "incarnation": _TEXT, "partition": _INT, "offset": _INT, "time": _INT,
    "time_unix_nano": _INT, "kind": _TEXT, "service": _TEXT, "severity_number": _INT,
    "trace_id": _TEXT, "record": _TEXT, "raw": _BYTES,
}  # fmt: skip
_REQUEST_BYTES_MAX: Final = 20 * 1024 * 1024
_CODES: Final = types.StorageError.StorageErrorCode

Fault = Callable[[Any, Callable[[], Any]], Any]
"""Answers an append in the server's place; the second argument lets it take the append."""


class FakeBigQuery:
    """One table.

    Attributes:
        schema: The table's columns.
        streams: The rows of each, by its name.
        finalized: Those that take no more.
        faults: What becomes of the next appends, one each.
        refuses: Answers the next calls that are no appends, one each; by gRPC's abort.
        rule: Looked at for every append; what it returns is the answer.
        refused_text: A row with it is wrong.
        appends: How many were asked for.
    """

    def __init__(self) -> None:
        self.schema = dict(SCHEMA)
        self.streams: dict[str, list[dict[str, Any]]] = {}
        self.finalized: set[str] = set()
        self.faults: list[Fault] = []
        self.refuses: list[Callable[[Any], None]] = []
        self.rule: Callable[[Any, Any], Any] = lambda asked, context: None
        self.refused_text = "POISON"
        self.appends = 0
        self.hung = threading.Event()
        self._lock = threading.Lock()
        self._server = grpc.server(futures.ThreadPoolExecutor(8))
        self._server.add_generic_rpc_handlers((self._handlers(),))
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def close(self) -> None:
        """Stop listening."""
        self.hung.set()
        self._server.stop(None).wait()

    def keys(self) -> dict[str, Any]:
        """Of a sink."""
        return {
            "table": TABLE,
            "url": f"http://127.0.0.1:{self.port}",
            "credentials_file": str(google_account().file),
        }

    def rows(self) -> list[dict[str, Any]]:
        """What a query sees."""
        return [row for rows in self.streams.values() for row in rows]

    def stored(self) -> Counter[int]:
        """How often each record, by its number, is there."""
        return Counter(int(json.loads(row["record"])["body"].split()[1]) for row in self.rows())

    def _handlers(self) -> Any:
        methods: dict[str, Any] = {
            "CreateWriteStream": grpc.unary_unary_rpc_method_handler(
                self._create,
                types.CreateWriteStreamRequest.deserialize,
                types.WriteStream.serialize,
            ),
            "FinalizeWriteStream": grpc.unary_unary_rpc_method_handler(
                self._finalize,
                types.FinalizeWriteStreamRequest.deserialize,
                types.FinalizeWriteStreamResponse.serialize,
            ),
            "AppendRows": grpc.stream_stream_rpc_method_handler(
                self._append_all,
                types.AppendRowsRequest.deserialize,
                types.AppendRowsResponse.serialize,
            ),
        }
        service = "google.cloud.bigquery.storage.v1.BigQueryWrite"
        return grpc.method_handlers_generic_handler(service, methods)

    def _let_in(self, context: Any, routing: str) -> None:
        metadata = dict(context.invocation_metadata())
        if not google_account().tokens.know(metadata.get("authorization")):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "invalid authentication credentials")
        if not metadata.get("x-goog-request-params", "").startswith(f"{routing}=projects%2F"):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no routing header")

    def _create(self, asked: Any, context: Any) -> Any:
        self._let_in(context, "parent")
        if self.refuses:
            self.refuses.pop(0)(context)
        if asked.parent != _PATH:
            context.abort(grpc.StatusCode.NOT_FOUND, f"Table {asked.parent} not found")
        assert asked.write_stream.type_ == types.WriteStream.Type.COMMITTED
        with self._lock:
            name = f"{_PATH}/streams/s{len(self.streams)}"
            self.streams[name] = []
        return types.WriteStream(name=name, type_=asked.write_stream.type_)

    def _finalize(self, asked: Any, context: Any) -> Any:
        self._let_in(context, "name")
        if self.refuses:
            self.refuses.pop(0)(context)
        with self._lock:
            if asked.name not in self.streams:
                context.abort(grpc.StatusCode.NOT_FOUND, "Requested entity was not found")
            self.finalized.add(asked.name)
            return types.FinalizeWriteStreamResponse(row_count=len(self.streams[asked.name]))

    def _append_all(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        self._let_in(context, "write_stream")
        for asked in requests:
            self.appends += 1
            spoilt = self.rule(asked, context)
            if spoilt is not None:
                yield spoilt
            elif self.faults:
                yield self.faults.pop(0)(context, partial(self.append, asked))
            else:
                yield self.append(asked)

    def append(self, asked: Any) -> Any:
        with self._lock:
            name, offset = asked.write_stream, asked.offset
            wrong = self._wrong_place(name, offset)
            if wrong is not None:
                return wrong
            if len(types.AppendRowsRequest.serialize(asked)) >= _REQUEST_BYTES_MAX:
                return refusal(code_pb2.INVALID_ARGUMENT, "the request is too large")
            found = self._read(asked.proto_rows)
            if not isinstance(found, list):
                return found
            self.streams[name] += found
        result = types.AppendRowsResponse.AppendResult(offset=offset)
        return types.AppendRowsResponse(append_result=result, write_stream=name)

    def _wrong_place(self, name: str, offset: int) -> Any:
        if name not in self.streams:
            return refusal(code_pb2.NOT_FOUND, "no such stream", _CODES.STREAM_NOT_FOUND)
        if name in self.finalized:
            said = "the stream is finalized"
            return refusal(code_pb2.INVALID_ARGUMENT, said, _CODES.STREAM_FINALIZED)
        end = len(self.streams[name])
        if offset < end:
            kind = _CODES.OFFSET_ALREADY_EXISTS
            return refusal(code_pb2.ALREADY_EXISTS, "there are rows at that offset", kind)
        if offset > end:
            kind = _CODES.OFFSET_OUT_OF_RANGE
            return refusal(code_pb2.OUT_OF_RANGE, "behind the end of the stream", kind)
        return None

    def _read(self, data: Any) -> Any:
        descriptor = types.ProtoSchema.pb(data.writer_schema).proto_descriptor
        for field in descriptor.field:
            if self.schema.get(field.name, field.type) != field.type:
                said = (
                    f"The proto field mismatched with BigQuery field at Record.{field.name}, "
                    f"the proto field type {field.type}, BigQuery field type another"
                )
                return refusal(code_pb2.INVALID_ARGUMENT, said, None)
            if field.name not in self.schema:
                kind = _CODES.SCHEMA_MISMATCH_EXTRA_FIELDS
                said = f"the table has no {field.name} of that type"
                return refusal(code_pb2.INVALID_ARGUMENT, said, kind)
        kind_of_row = _message_class(descriptor)
        found, errors = [], []
        for index, content in enumerate(data.rows.serialized_rows):
            try:
                row = kind_of_row.FromString(content)
            except DecodeError:
                errors.append(types.RowError(index=index, message="cannot be read"))
                continue
            values = {field.name: value for field, value in row.ListFields()}
            found.append(values)
            if self.refused_text in values.get("record", ""):
                kind_of_error = types.RowError.RowErrorCode.FIELDS_ERROR
                said = "Field record has an invalid value"
                errors.append(types.RowError(index=index, code=kind_of_error, message=said))
        if errors:
            made = refusal(code_pb2.INVALID_ARGUMENT, "Errors found while processing rows")
            made.row_errors = errors
            return made
        return found


def refusal(code: int, said: str, kind: Any = None) -> Any:
    """An answer that is an error."""
    status = status_pb2.Status(code=code, message=said)
    if kind is not None:
        detail = AnyMessage()
        detail.Pack(types.StorageError.pb(types.StorageError(code=kind, error_message=said)))
        status.details.append(detail)
    return types.AppendRowsResponse(error=status)


def _message_class(descriptor: Any) -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="row.proto", syntax="proto2")
    file.message_type.add().CopyFrom(descriptor)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(descriptor.name))
