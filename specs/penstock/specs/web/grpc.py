"""gRPC server interceptors, for both of grpcio's servers."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any, Final

from penstock.specs.errors import MissingExtraError
from penstock.specs.web.middleware import InContext
from penstock.specs.web.request import Request, ServerOptions, handling

try:
    import grpc
    import grpc.aio
except ImportError as error:
    raise MissingExtraError(error.name, "logd") from None

from typing_extensions import override

_SCOPE: Final = "rpc.server"
_FAULTS: Final = frozenset({"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL",
                            "UNAVAILABLE", "DATA_LOSS"})  # fmt: skip
"""The statuses that are a server's fault (OpenTelemetry's conventions for RPC spans)."""


_NAMES: Final = {code.value[0]: code.name for code in grpc.StatusCode}
"""grpcio's asyncio server gives a status as its number."""


class _Interceptor:
    def __init__(
        self, *, baggage: bool = False, records: bool = True, tracer_provider: Any = None
    ) -> None:
        self._options = ServerOptions(
            baggage=baggage, records=records, tracer_provider=tracer_provider
        )


class GrpcInterceptor(_Interceptor, grpc.ServerInterceptor):
    """An interceptor for ``grpc.server(…, interceptors=[GrpcInterceptor()])``.

    Args:
        baggage: Whether to bind what the caller's baggage says of user, account, request and
            session: behind a gateway of your own only.
        records: Whether a record says how each call went. Failed ones always have one.
        tracer_provider: Makes the spans; None for OpenTelemetry's global one.
    """

    @override
    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        begin = _call_handling(handler_call_details, self._options)

        def unary(behavior: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
            def called(given: Any, context: Any) -> Any:
                request, entered = begin(context)
                with entered:
                    try:
                        answer = behavior(given, context)
                    except Exception:
                        _conclude(request, context, raised=True)
                        raise
                    _conclude(request, context, raised=False)
                    return answer

            return called

        def streaming(behavior: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
            def called(given: Any, context: Any) -> Any:
                request, entered = begin(context)

                def answers() -> Any:
                    try:
                        yield from behavior(given, context)
                    except Exception:
                        _conclude(request, context, raised=True)
                        raise
                    _conclude(request, context, raised=False)

                return InContext(entered, answers)

            return called

        return _wrapped(handler, unary, streaming)


class AioGrpcInterceptor(_Interceptor, grpc.aio.ServerInterceptor):
    """An interceptor for ``grpc.aio.server``; it takes the arguments of `GrpcInterceptor`."""

    @override
    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        begin = _call_handling(handler_call_details, self._options)

        def unary(behavior: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[Any, Any], Any]:
            async def called(given: Any, context: Any) -> Any:
                request, entered = begin(context)
                with entered:
                    try:
                        answer = await behavior(given, context)
                    except Exception:
                        _conclude(request, context, raised=True)
                        raise
                    _conclude(request, context, raised=False)
                    return answer

            return called

        def streaming(behavior: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
            async def called(given: Any, context: Any) -> AsyncIterator[Any]:
                request, entered = begin(context)
                with entered:
                    try:
                        async for answer in behavior(given, context):
                            yield answer
                    except Exception:
                        _conclude(request, context, raised=True)
                        raise
                    _conclude(request, context, raised=False)

            return called

        return _wrapped(handler, unary, streaming)


def _call_handling(
    details: Any, options: ServerOptions
) -> Callable[[Any], tuple[Request, AbstractContextManager[None]]]:
    """Return a function that begins a call: its request, and the block that handles it."""
    method = str(details.method).lstrip("/")
    headers = {k: v for k, v in details.invocation_metadata or () if isinstance(v, str)}

    def begin(_context: Any) -> tuple[Request, AbstractContextManager[None]]:
        service, _, name = method.rpartition("/")
        attributes = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": name}
        request = Request(_SCOPE, method, attributes)
        return request, handling(request, headers, options)

    return begin


def _conclude(request: Request, context: Any, *, raised: bool) -> None:
    """Take over the status that the handler set; ``abort`` sets one, and raises."""
    code = context.code()
    name = getattr(code, "name", None) or _NAMES.get(code, "OK")
    request.is_answered = name != "OK"
    if raised and not request.is_answered:
        name = "UNKNOWN"
    request.status = name
    request.failed = name in _FAULTS
    request.attributes["rpc.grpc.status"] = name


def _wrapped(handler: Any, unary: Any, streaming: Any) -> Any:
    """The method's handler with its behaviour wrapped, in whichever of the four forms it is."""
    forms = {
        (False, False): ("unary_unary", unary, grpc.unary_unary_rpc_method_handler),
        (False, True): ("unary_stream", streaming, grpc.unary_stream_rpc_method_handler),
        (True, False): ("stream_unary", unary, grpc.stream_unary_rpc_method_handler),
        (True, True): ("stream_stream", streaming, grpc.stream_stream_rpc_method_handler),
    }
    name, wrap, make = forms[handler.request_streaming, handler.response_streaming]
    return make(
        wrap(getattr(handler, name)),
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )
