"""OpenTelemetry's environment variables that `setup` honours.

Those that the SDK reads itself are in `otel_environment`, OTEL_PROPAGATORS in `propagators`.
"""

import logging
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
LEVEL_VARIABLE: Final = "OTEL_LOG_LEVEL"
_LEVELS: Final = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
    "critical": logging.CRITICAL,
    "none": logging.CRITICAL + 1,
}
_LOGGER: Final = logging.getLogger("penstock.specs")


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


def warn_of_other_exporters(signal: str) -> None:
    """OTEL_<SIGNAL>_EXPORTER may name several, of which `setup` brings Penstock's alone."""
    given = os.environ.get(f"OTEL_{signal.upper()}_EXPORTER", "")
    others = [name for part in given.split(",") if (name := part.strip()) not in ("", EXPORTER)]
    if others:
        _LOGGER.warning(
            "OTEL_%s_EXPORTER: nothing goes to %s: setup brings Penstock's exporter alone; start"
            " with opentelemetry-instrument for several",
            signal.upper(),
            ", ".join(others),
        )


def configure_opentelemetrys_loggers() -> None:
    """OTEL_LOG_LEVEL: the least severe that OpenTelemetry says of itself."""
    given = os.environ.get(LEVEL_VARIABLE, "").strip()
    if not given:
        return
    level = _LEVELS.get(given.lower())
    if level is None:
        _LOGGER.warning(
            "%s is ignored: it is one of %s", LEVEL_VARIABLE, ", ".join(sorted(_LEVELS))
        )
        return
    logging.getLogger("opentelemetry").setLevel(level)


def service_name() -> str | None:
    """OTEL_SERVICE_NAME."""
    return os.environ.get("OTEL_SERVICE_NAME")


def resource_attributes(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """OTEL_RESOURCE_ATTRIBUTES: ``key=value`` pairs, comma separated, percent-encoded."""
    given = os.environ if environment is None else environment
    pairs = given.get("OTEL_RESOURCE_ATTRIBUTES", "").split(",")
    found = (pair.partition("=") for pair in pairs if "=" in pair)
    return {key.strip(): unquote(value.strip()) for key, _, value in found if key.strip()}
