"""OpenTelemetry's environment variables that `setup` honours.

The SDK, where it is installed, honours its own besides: OTEL_BSP_*, OTEL_*_LIMIT, OTEL_PROPAGATORS,
OTEL_TRACES_SAMPLER, OTEL_METRIC_EXPORT_INTERVAL.
"""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from penstock.specs.spill_file import usable_directory

EXPORTER: Final = "penstock"
SOCKET_VARIABLE: Final = "PENSTOCK_SOCKET"
USUAL_SOCKET: Final = "/run/penstock/collector.sock"
SPILL_VARIABLE: Final = "PENSTOCK_SPILL_DIR"


def spill_directory() -> Path | None:
    """PENSTOCK_SPILL_DIR, else one of this user's among temporary files; None if it is not safe."""
    usual = Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}"
    directory = Path(os.environ.get(SPILL_VARIABLE) or usual)
    return directory if usable_directory(directory) else None


def sdk_is_disabled() -> bool:
    """OTEL_SDK_DISABLED: ``true``, in any case, and nothing else."""
    return os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def is_exported(signal: str) -> bool:
    """Whether OTEL_<SIGNAL>_EXPORTER leaves ``traces`` or ``metrics`` to Penstock; unset: it does.

    ``none``, or another exporter, is set up by whoever was told to.
    """
    given = os.environ.get(f"OTEL_{signal.upper()}_EXPORTER", "").strip()
    return not given or EXPORTER in (name.strip() for name in given.split(","))


def service_name() -> str | None:
    """OTEL_SERVICE_NAME."""
    return os.environ.get("OTEL_SERVICE_NAME")


def resource_attributes(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """OTEL_RESOURCE_ATTRIBUTES: ``key=value`` pairs, comma separated, percent-encoded."""
    given = os.environ if environment is None else environment
    pairs = given.get("OTEL_RESOURCE_ATTRIBUTES", "").split(",")
    found = (pair.partition("=") for pair in pairs if "=" in pair)
    return {key.strip(): unquote(value.strip()) for key, _, value in found if key.strip()}
