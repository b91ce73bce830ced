"""Environment variables that `setup` honours: Penstock's own, and those of OpenTelemetry.

By OpenTelemetry's specification a value that cannot be read counts as unset, with a warning. The
Python SDK raises for some of them instead, so an error in a deployment's file would keep an
application from starting. So `setup` hides such values from the SDK while it is set up.

OpenTelemetry itself reads OTEL_PROPAGATORS (`penstock.specs.web.request`).
"""

import logging
import math
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import unquote

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
    import tempfile  # takes a while to load, and is needed only where there is a collector

    usual = Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}"
    directory = Path(os.environ.get(SPILL_VARIABLE) or usual)
    return directory if usable_directory(directory) else None


def usable_directory(path: Path) -> bool:
    """Return whether journals may lie there; the directory is made if need be, and must be ours."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


def sdk_is_disabled() -> bool:
    """OTEL_SDK_DISABLED: ``true``, in any case, and nothing else."""
    return os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def is_exported(signal: str) -> bool:
    """Return whether OTEL_<SIGNAL>_EXPORTER leaves ``traces`` or ``metrics`` to Penstock.

    An unset variable does. ``none``, or another exporter, is set up elsewhere.
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
    return os.environ.get("OTEL_SERVICE_NAME")


def resource_attributes(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """OTEL_RESOURCE_ATTRIBUTES: ``key=value`` pairs, comma separated, percent-encoded."""
    given = os.environ if environment is None else environment
    pairs = given.get("OTEL_RESOURCE_ATTRIBUTES", "").split(",")
    found = (pair.partition("=") for pair in pairs if "=" in pair)
    return {key.strip(): unquote(value.strip()) for key, _, value in found if key.strip()}


_BATCH: Final = "OTEL_BSP_MAX_EXPORT_BATCH_SIZE"
_QUEUE: Final = "OTEL_BSP_MAX_QUEUE_SIZE"
_BATCH_USUAL: Final = 512
_QUEUE_USUAL: Final = 2048
_FILTERS: Final = ("always_on", "always_off", "trace_based")


def _is_count(text: str) -> bool:
    return text.isdecimal() and int(text) > 0


def _is_duration(text: str) -> bool:
    try:
        number = float(text)
    except ValueError:
        return False
    return 0 < number < math.inf


RULES: Final[Mapping[str, tuple[Callable[[str], bool], str]]] = {
    **dict.fromkeys(
        (
            "OTEL_ATTRIBUTE_COUNT_LIMIT", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT",
            "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT",
            "OTEL_SPAN_EVENT_COUNT_LIMIT", "OTEL_SPAN_LINK_COUNT_LIMIT",
            "OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT", "OTEL_LINK_ATTRIBUTE_COUNT_LIMIT",
        ),
        (str.isdecimal, "a number from 0"),
    ),
    **dict.fromkeys(
        ("OTEL_BSP_SCHEDULE_DELAY", "OTEL_BSP_EXPORT_TIMEOUT"),
        (_is_count, "milliseconds, a number from 1"),
    ),
    **dict.fromkeys((_QUEUE, _BATCH), (_is_count, "a number from 1")),
    **dict.fromkeys(
        ("OTEL_METRIC_EXPORT_INTERVAL", "OTEL_METRIC_EXPORT_TIMEOUT"),
        (_is_duration, "milliseconds above 0"),
    ),
    "OTEL_METRICS_EXEMPLAR_FILTER": (_FILTERS.__contains__, f"one of {', '.join(_FILTERS)}"),
}  # fmt: skip
"""The form of each variable's value, and the words for it. An empty variable is unset."""


@contextmanager
def well_formed() -> Iterator[None]:
    """Within the block the environment has none of the variables that are malformed."""
    hidden = dict(_malformed(os.environ))
    for name, reason in hidden.items():
        if reason:
            _LOGGER.warning("%s is ignored: %s", name, reason)
    values = {name: os.environ.pop(name) for name in hidden}
    try:
        yield
    finally:
        os.environ.update(values)


def _malformed(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Names, each with what is wrong; nothing is wrong with an empty one."""
    found = {name: environment[name].strip() for name in RULES if name in environment}
    bad = {name for name, text in found.items() if text and not RULES[name][0](text)}
    for name, text in found.items():
        if not text or name in bad:
            yield name, text and f"it must be {RULES[name][1]}"
    given = {name: int(found[name]) for name in (_QUEUE, _BATCH) if found.get(name, "").isdecimal()}
    queue, batch = given.get(_QUEUE, _QUEUE_USUAL), given.get(_BATCH, _BATCH_USUAL)
    if not bad & {_QUEUE, _BATCH} and batch > queue:
        for name in given:
            yield name, f"batches of {batch} spans do not fit into a queue of {queue}"
