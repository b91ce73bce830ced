"""BigQuery's Storage Write API over gRPC: streams, appends, and what their errors mean.

An append is its own call: one request, one answer, one limit for both. Codes are those of
`google.rpc.Code`, and of the API's `StorageError` where that says more.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import grpc
from google.cloud.bigquery_storage_v1 import types
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto
from google.protobuf.wrappers_pb2 import Int64Value
from google.rpc import code_pb2

from penstock.base.clock import BlockingClock
from penstock.router.delivery.result import (
    DeliveryResult,
    Failed,
    Fault,
    Paused,
    Rejected,
    Retryable,
    TooLarge,
)
from penstock.router.sinks.bigquery.sink import COLUMNS, BigQuerySink, TroubleError
from penstock.router.sinks.http.google_credentials import GoogleToken
from penstock.router.sinks.http.grpc_channel import GrpcChannel, error_details, retry_after_s

_SERVICE: Final = "/google.cloud.bigquery.storage.v1.BigQueryWrite"
_SCOPE: Final = "https://www.googleapis.com/auth/bigquery.insertdata"
_TYPES: Final = {
    "STRING": FieldDescriptorProto.TYPE_STRING,
    "INT64": FieldDescriptorProto.TYPE_INT64,
    "TIMESTAMP": FieldDescriptorProto.TYPE_INT64,  # microseconds
    "BYTES": FieldDescriptorProto.TYPE_BYTES,
}
_SILENT: Final = frozenset({code_pb2.DEADLINE_EXCEEDED, code_pb2.CANCELLED, code_pb2.ABORTED})
_FAILURES: Final = frozenset({code_pb2.INTERNAL, code_pb2.UNKNOWN, code_pb2.DATA_LOSS})
_SENDER: Final = frozenset(
    {code_pb2.UNAUTHENTICATED, code_pb2.PERMISSION_DENIED, code_pb2.UNIMPLEMENTED}
)
_DEFAULT_VALUE: Final = types.AppendRowsRequest.MissingValueInterpretation.DEFAULT_VALUE
_OF_THE_SCHEMA: Final = re.compile(r"proto field|schema", re.IGNORECASE)
"""Pattern of errors on a column that exists with another type; BigQuery has no code for it."""
_CERTAIN: Final = frozenset({code_pb2.INVALID_ARGUMENT, code_pb2.RESOURCE_EXHAUSTED})
"""Codes of an append of which no row was stored, while the stream accepts another append."""
_MISSING: Final = frozenset({code_pb2.NOT_FOUND, code_pb2.FAILED_PRECONDITION})
"""Codes of a call that concerns no record: the table is missing or of the wrong kind."""
_WRONG_TABLE: Final = frozenset({
    types.StorageError.StorageErrorCode.TABLE_NOT_FOUND,
    types.StorageError.StorageErrorCode.SCHEMA_MISMATCH_EXTRA_FIELDS,
    types.StorageError.StorageErrorCode.CMEK_NOT_PROVIDED,
    types.StorageError.StorageErrorCode.INVALID_CMEK_PROVIDED,
    types.StorageError.StorageErrorCode.KMS_PERMISSION_DENIED,
})  # fmt: skip


_OF_THE_STREAM: Final = frozenset({
    types.StorageError.StorageErrorCode.STREAM_NOT_FOUND,
    types.StorageError.StorageErrorCode.STREAM_FINALIZED,
    types.StorageError.StorageErrorCode.STREAM_ALREADY_COMMITTED,
    types.StorageError.StorageErrorCode.INVALID_STREAM_STATE,
    types.StorageError.StorageErrorCode.OFFSET_ALREADY_EXISTS,
    types.StorageError.StorageErrorCode.OFFSET_OUT_OF_RANGE,
})  # fmt: skip
"""Whatever the status: another stream is needed, and this one says what became of the records."""


@dataclass(frozen=True, slots=True)
class Appended:
    """The answer to an append.

    Attributes:
        verdict: Result where it was not accepted; None where it was.
        is_certain: Whether nothing of it is there for certain.
        rows: Those that are wrong, by their places.
    """

    verdict: DeliveryResult | None = None
    is_certain: bool = True
    rows: tuple[tuple[int, Fault], ...] = ()


class Connection:
    """A channel that is made when it is needed, and made again when it is lost."""

    def __init__(self, config: BigQuerySink, clock: BlockingClock) -> None:
        self._config = config
        timeout_s, file = config.timeout_s, config.credentials_file
        self._token = GoogleToken(file, scope=_SCOPE, timeout_s=timeout_s)
        tls = grpc.ssl_channel_credentials() if config.url.scheme == "https" else None
        self._channel = GrpcChannel(f"{config.url.host}:{config.url.port}", tls, clock)
        self._schema = types.ProtoSchema(proto_descriptor=row_descriptor())

    def create(self) -> str:
        """A new stream whose rows are seen at once; returns its name.

        Raises:
            TroubleError: There is none.
            NoTokenError: Nobody says who we are.
        """
        kind = types.WriteStream.Type.COMMITTED
        asked = types.CreateWriteStreamRequest(
            parent=self._config.path, write_stream=types.WriteStream(type_=kind)
        )
        made = self._call("CreateWriteStream", asked, types.WriteStream, parent=asked.parent)
        name: str = made.name
        return name

    def finalize(self, stream: str) -> int | None:
        """End a stream; returns how many rows it has, None if it is known no more.

        Raises:
            TroubleError: It may not be at its end.
            NoTokenError: Nobody says who we are.
        """
        asked, answer = (
            types.FinalizeWriteStreamRequest(name=stream),
            types.FinalizeWriteStreamResponse,
        )
        try:
            found = self._call("FinalizeWriteStream", asked, answer, name=stream)
        except TroubleError as error:
            if error.code == code_pb2.NOT_FOUND:
                return None
            raise
        return int(found.row_count)

    def append(self, stream: str, offset: int, rows: Sequence[bytes]) -> Appended:
        """Append rows at the offset, which is the stream's end.

        Raises:
            TroubleError: Nobody knows whether they are there.
            NoTokenError: Nobody says who we are.
        """
        data = types.AppendRowsRequest.ProtoData(
            writer_schema=self._schema, rows=types.ProtoRows(serialized_rows=list(rows))
        )
        asked = types.AppendRowsRequest(
            write_stream=stream,
            offset=Int64Value(value=offset),
            proto_rows=data,
            default_missing_value_interpretation=_DEFAULT_VALUE,
            trace_id="penstock:router",
        )
        answer = self._exchange(asked)
        if "error" not in answer:
            return Appended()
        return self._refusal(answer)

    def close(self) -> None:
        self._channel.close()

    def _exchange(self, asked: types.AppendRowsRequest) -> types.AppendRowsResponse:
        call = self._channel.current().stream_stream(
            f"{_SERVICE}/AppendRows",
            request_serializer=types.AppendRowsRequest.serialize,
            response_deserializer=types.AppendRowsResponse.deserialize,
        )
        metadata = self._metadata(write_stream=asked.write_stream)
        going: Any = call(iter([asked]), timeout=self._config.timeout_s, metadata=metadata)
        try:
            for answer in going:
                return answer
        except grpc.RpcError as error:
            self._channel.failed(error.code())
            raise self._trouble(error) from None
        finally:
            going.cancel()
        silence = Failed(Fault("no_answer", "the call ended without an answer"), answered=False)
        raise TroubleError(silence, code_pb2.UNKNOWN)

    def _call(self, method: str, asked: Any, answer: Any, **routing: str) -> Any:
        """A call that is about no record."""
        call: Any = self._channel.current().unary_unary(
            f"{_SERVICE}/{method}",
            request_serializer=type(asked).serialize,
            response_deserializer=answer.deserialize,
        )
        metadata = self._metadata(**routing)
        try:
            return call(asked, timeout=self._config.timeout_s, metadata=metadata)
        except grpc.RpcError as error:
            self._channel.failed(error.code())
            trouble = self._trouble(error)
            raise TroubleError(_of_no_record(trouble), trouble.code) from None

    def _metadata(self, **routing: str) -> tuple[tuple[str, str], ...]:
        params = "&".join(f"{name}={quote(value, safe='')}" for name, value in routing.items())
        token = self._token.read()
        return (("authorization", f"Bearer {token}"), ("x-goog-request-params", params))

    def _trouble(self, error: Any) -> TroubleError:
        code: int = error.code().value[0]
        if code == code_pb2.UNAUTHENTICATED:
            self._token.forget()
        details = error_details(error)
        verdict = classify_error(code, str(error.details()), details)
        return TroubleError(verdict, code)

    def _refusal(self, answer: types.AppendRowsResponse) -> Appended:
        status = answer.error
        verdict = classify_error(status.code, status.message, status.details)
        rows = tuple(
            (
                int(row.index),
                Fault("bigquery_row", f"BigQuery says {row.message[:200]!r}", about_record=True),
            )
            for row in answer.row_errors
        )
        is_certain = status.code in _CERTAIN and not isinstance(verdict, Paused | Retryable)
        is_full = status.code == code_pb2.RESOURCE_EXHAUSTED
        return Appended(verdict, is_certain=is_certain or is_full or bool(rows), rows=rows)


def row_descriptor() -> DescriptorProto:
    """Return the descriptor of a row, with the numbers of its columns."""
    made = DescriptorProto(name="Record")
    for number, (name, kind) in enumerate(COLUMNS, 1):
        label = FieldDescriptorProto.LABEL_OPTIONAL
        made.field.add(name=name, number=number, type=_TYPES[kind], label=label)
    return made


def classify_error(code: int, said: str, details: Any = ()) -> DeliveryResult:
    """Return the result for the rows of an append that failed."""
    name = code_pb2.Code.Name(code)
    text = f"BigQuery {name}: {said[:200]}"
    fault = Fault(f"bigquery_{name.lower()}", text)
    kinds = set(_storage_codes(details))
    if kinds & _OF_THE_STREAM:
        return Retryable(text)
    is_unfit = code == code_pb2.INVALID_ARGUMENT
    if kinds & _WRONG_TABLE or code in _SENDER or (is_unfit and _OF_THE_SCHEMA.search(said)):
        return Paused(text)
    if code == code_pb2.RESOURCE_EXHAUSTED:
        return TooLarge(fault) if "larger than max" in said else Retryable(text, _after_s(details))
    if code in _SILENT:
        return Failed(fault, _after_s(details), answered=False)
    if code in _FAILURES:
        return Failed(fault)
    return Rejected(fault) if is_unfit else Retryable(text, _after_s(details))


def _of_no_record(trouble: TroubleError) -> DeliveryResult:
    match trouble.verdict:
        case Retryable(reason) if trouble.code in _MISSING:
            return Paused(reason)
        case Rejected(fault) | TooLarge(fault):
            return Paused(fault.reason)
        case Failed(fault, after_s):
            return Retryable(fault.reason, after_s)
        case verdict:
            return verdict


def _storage_codes(details: Any) -> Iterator[Any]:
    for detail in details:
        found = types.StorageError.pb(types.StorageError())
        if detail.Unpack(found):
            yield found.code  # a later service may have codes that are not known here


def _after_s(details: Any) -> float:
    return retry_after_s(details) or 0.0
