"""The request sink that sinks over HTTP and gRPC share, and the HTTP sink.

What a sink of another package derives from is here, and loaded when it is asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from penstock.router.delivery.result import Fault
    from penstock.router.sinks.http.client import HttpRequest
    from penstock.router.sinks.http.request_sink import Item, Request, Row
    from penstock.router.sinks.http.settings import HttpTaskSettings
    from penstock.router.sinks.http.task_sink import HttpTaskSink

__all__ = [
    "Fault", "HttpRequest", "HttpTaskSettings", "HttpTaskSink", "Item", "Request", "Row",
]  # fmt: skip

_MODULES: Final = {
    "Fault": "penstock.router.delivery.result",
    "HttpRequest": f"{__name__}.client",
    "HttpTaskSettings": f"{__name__}.settings",
    "HttpTaskSink": f"{__name__}.task_sink",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES.get(name, f"{__name__}.request_sink")), name)
