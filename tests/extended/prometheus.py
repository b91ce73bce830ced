"""Prometheus 3 from the Go module proxy: its remote write, version 1. The tests start it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.extended.go_module import built
from tests.extended.product import Product

VERSION: Final = "v0.316.0"
"""Of the module; Prometheus 3.16.0."""

_PACKAGE: Final = "github.com/prometheus/prometheus/cmd/prometheus"


@contextmanager
def running(directory: Path) -> Iterator[dict[str, str]]:
    """The environment that names its program to the tests.

    Raises:
        UnavailableError: It cannot be built.
    """
    program = built(_PACKAGE, VERSION, directory, tags="remove_all_sd")  # it finds nothing here
    yield {"PENSTOCK_TEST_PROMETHEUS": str(program)}


PROMETHEUS: Final = Product(
    "Prometheus 3.16.0", running,
    ("tests/live/test_router_sinks.py", "tests/live/test_router_sink_faults.py",
     "tests/live/test_router_previews.py"),
    "prometheus",
)  # fmt: skip
