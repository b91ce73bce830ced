"""Names of levels as OpenTelemetry's severity numbers."""

from typing import Final

INFO: Final = (9, "INFO")

_LEVELS: Final = {
    "trace": (1, "TRACE"),
    "debug": (5, "DEBUG"),
    "info": INFO,
    "information": INFO,
    "notice": (10, "INFO2"),
    "warning": (13, "WARN"),
    "warn": (13, "WARN"),
    "error": (17, "ERROR"),
    "err": (17, "ERROR"),
    "exception": (17, "ERROR"),
    "critical": (21, "FATAL"),
    "crit": (21, "FATAL"),
    "fatal": (21, "FATAL"),
    "alert": (22, "FATAL2"),
    "emerg": (24, "FATAL4"),
}
_SYSLOG: Final = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")


def severity(level: object) -> tuple[int, str] | None:
    """Severity number and text of a level's name; None when the name says nothing."""
    if not isinstance(level, str):
        return None
    return _LEVELS.get(level) or _LEVELS.get(level.strip().lower())


def severity_of_syslog(code: int) -> tuple[int, str]:
    """The same of syslog's severity, from 0, emergency, to 7, debug (RFC 5424, section 6.2.1)."""
    return _LEVELS[_SYSLOG[code]]
