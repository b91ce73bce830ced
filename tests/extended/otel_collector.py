"""The OpenTelemetry Collector: its OTLP receiver and its file exporter, in a main of ours."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.extended.go_module import written
from tests.extended.product import Product, answers, process
from tests.support.processes import free_port

VERSION: Final = "v0.161.0"
"""Of its parts; newer ones of the file exporter need what is not served."""

_STABLE: Final = "v1.67.0"
_CORE: Final = "go.opentelemetry.io/collector"
_PACKAGES: Final = (
    f"github.com/open-telemetry/opentelemetry-collector-contrib/exporter/fileexporter@{VERSION}",
    f"{_CORE}/otelcol@{VERSION}",
    f"{_CORE}/receiver/otlpreceiver@{VERSION}",
    f"{_CORE}/service/telemetry/otelconftelemetry@{VERSION}",
    f"{_CORE}/confmap/provider/fileprovider@{_STABLE}",
)
_SOURCE: Final = """package main

import (
	"log"

	"github.com/open-telemetry/opentelemetry-collector-contrib/exporter/fileexporter"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/provider/fileprovider"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/service/telemetry/otelconftelemetry"
)

func factories() (made otelcol.Factories, err error) {
	made.Telemetry = otelconftelemetry.NewFactory()
	made.Receivers, err = otelcol.MakeFactoryMap[receiver.Factory](otlpreceiver.NewFactory())
	if err != nil {
		return
	}
	made.Exporters, err = otelcol.MakeFactoryMap[exporter.Factory](fileexporter.NewFactory())
	return
}

func main() {
	providers := []confmap.ProviderFactory{fileprovider.NewFactory()}
	settings := otelcol.CollectorSettings{
		BuildInfo: component.BuildInfo{Command: "otelcol"},
		Factories: factories,
		ConfigProviderSettings: otelcol.ConfigProviderSettings{
			ResolverSettings: confmap.ResolverSettings{
				ProviderFactories: providers,
				DefaultScheme:     "file",
			},
		},
	}
	if err := otelcol.NewCommand(settings).Execute(); err != nil {
		log.Fatal(err)
	}
}
"""
# A file that rotates is written without a buffer.
_SETTINGS: Final = """
receivers:
  otlp:
    protocols: {{grpc: {{endpoint: "127.0.0.1:{grpc}"}}, http: {{endpoint: "127.0.0.1:{http}"}}}}
exporters:
  file: {{path: "{file}", rotation: {{max_megabytes: 1000}}}}
service:
  telemetry: {{metrics: {{level: none}}, logs: {{level: warn}}}}
  pipelines:
    logs: {{receivers: [otlp], exporters: [file]}}
    metrics: {{receivers: [otlp], exporters: [file]}}
    traces: {{receivers: [otlp], exporters: [file]}}
"""


@contextmanager
def running(directory: Path) -> Iterator[dict[str, str]]:
    """The environment that names it to the tests, while it runs.

    Raises:
        UnavailableError: It cannot be built, or does not come up.
    """
    program = written(_SOURCE, _PACKAGES, directory / f"otel-collector-{VERSION}")
    grpc, http = free_port(), free_port()
    file, settings = program.with_name("taken.jsonl"), program.with_name("collector.yaml")
    file.write_bytes(b"")
    settings.write_text(_SETTINGS.format(grpc=grpc, http=http, file=file))
    url = f"http://127.0.0.1:{http}"
    ready = lambda: answers(f"{url}/v1/logs", b"{}")  # noqa: E731 - beside the command it is about
    with process([program, "--config", settings], ready, program.with_name("log")):
        yield {
            "PENSTOCK_TEST_OTLP_URL": url,
            "PENSTOCK_TEST_OTLP_GRPC": f"127.0.0.1:{grpc}",
            "PENSTOCK_TEST_OTLP_FILE": str(file),
        }


OTEL_COLLECTOR: Final = Product(
    f"OpenTelemetry Collector {VERSION}", running,
    ("tests/extended/test_otel_collector.py", "tests/live/test_sink_contracts.py",
     "tests/live/test_router_sink_faults.py"),
    "otel_collector or otlp",
)  # fmt: skip
