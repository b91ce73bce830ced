"""Jaeger from the Go module proxy, with its traces in memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.extended.go_module import built
from tests.extended.product import Product, answers, process
from tests.support.processes import free_port

VERSION: Final = "v1.76.0"
"""Of the module; its program is that of Jaeger 2."""

_PACKAGE: Final = "github.com/jaegertracing/jaeger/cmd/jaeger"
_SETTINGS: Final = """
service:
  extensions: [jaeger_storage, jaeger_query]
  pipelines:
    traces: {{receivers: [otlp], exporters: [jaeger_storage_exporter]}}
  telemetry: {{metrics: {{level: none}}, logs: {{level: warn}}}}
extensions:
  jaeger_storage: {{backends: {{here: {{memory: {{max_traces: 100000}}}}}}}}
  jaeger_query:
    storage: {{traces: here}}
    http: {{endpoint: "127.0.0.1:{query}"}}
    grpc: {{endpoint: "127.0.0.1:{other}"}}
receivers:
  otlp:
    protocols: {{grpc: {{endpoint: "127.0.0.1:{grpc}"}}, http: {{endpoint: "127.0.0.1:{http}"}}}}
exporters:
  jaeger_storage_exporter: {{trace_storage: here}}
"""


@contextmanager
def running(directory: Path) -> Iterator[dict[str, str]]:
    """The environment that names it to the tests, while it runs.

    Raises:
        UnavailableError: It cannot be built, or does not come up.
    """
    program = built(_PACKAGE, VERSION, directory)
    query, other, grpc, http = (free_port() for _ in range(4))
    settings = program.with_name("jaeger.yaml")
    settings.write_text(_SETTINGS.format(query=query, other=other, grpc=grpc, http=http))
    url = f"http://127.0.0.1:{query}"
    ready = lambda: answers(f"{url}/api/services")  # noqa: E731 - beside the command it is about
    with process([program, "--config", settings], ready, program.with_name("log")):
        yield {
            "PENSTOCK_TEST_JAEGER_URL": url,
            "PENSTOCK_TEST_OTLP_URL": f"http://127.0.0.1:{http}",
            "PENSTOCK_TEST_OTLP_GRPC": f"127.0.0.1:{grpc}",
        }


JAEGER: Final = Product(
    f"Jaeger {VERSION}", running,
    ("tests/extended/test_jaeger.py", "tests/live/test_sink_contracts.py",
     "tests/live/test_router_sink_faults.py"),
    "jaeger or traces or TraceService",
)  # fmt: skip
