"""Levels of programs, loggers, syslog and journald, as OpenTelemetry's severity numbers."""

import re
from collections.abc import Callable
from typing import Any, Final

from penstock.specs.models.log import severity_text

Severity = tuple[int, str]
"""Number and OpenTelemetry's short name of a severity."""
INFO: Final = (9, "INFO")
WARN: Final = (13, "WARN")


def _of(number: int, *names: str) -> dict[str, Severity]:
    return dict.fromkeys(names, (number, severity_text(number)))


_LEVELS: Final = {
    **{severity_text(number).lower(): (number, severity_text(number)) for number in range(1, 25)},
    **_of(1, "finest", "silly", "trce", "vrb", "t"),
    **_of(5, "finer", "dbg", "dbug", "d", "d1", "d2", "d3", "d4", "d5"),
    **_of(6, "fine", "verbose", "v"),
    **_of(7, "config", "http"),
    **_of(9, "information", "inf", "i", "log", "default"),
    **_of(10, "notice", "note", "success"),
    **_of(13, "warning", "wrn", "w"),
    **_of(17, "err", "exception", "severe", "fail", "e"),
    **_of(21, "critical", "crit", "ftl", "dpanic", "f", "c"),
    **_of(22, "alert"),
    **_of(24, "emerg", "emergency", "panic"),
}
"""Level names of common loggers in lower case: syslog, java.util.logging, npm's (winston), zap,
.NET, Serilog, loguru, PostgreSQL, MongoDB, and Google's; and OpenTelemetry's own, as ``info2``."""
_SYSLOG: Final = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")
_SLOG: Final = re.compile(r"(DEBUG|INFO|WARN|ERROR)([+-]\d{1,2})")
"""Levels of Go's log/slog, such as ``INFO+2``; they are four apart, as OpenTelemetry's are."""
_TENS: Final = (1, 5, 9, 13, 17, 21)
"""Severity numbers of pino's and bunyan's levels 10, 20, … 60: trace, debug, info, warn, error,
fatal."""
_HUNDREDS: Final = (9, 5, 9, 10, 13, 17, 21, 22, 24)
"""Severity numbers of Google's levels 0, 100, … 800, from default to emergency."""


def severity(level: object) -> Severity | None:
    """Severity number and text of a level's name; None when the name says nothing."""
    if not isinstance(level, str):
        return None
    found = _LEVELS.get(level) or _LEVELS.get(level.strip().lower())
    if found is None and (named := _SLOG.fullmatch(level)) is not None:
        number = _LEVELS[named[1].lower()][0] + int(named[2])
        return (number, severity_text(number)) if 1 <= number <= 24 else None
    return found


def severity_of_syslog(code: int) -> Severity:
    """Severity of a syslog code from 0, emergency, to 7, debug (RFC 5424, section 6.2.1)."""
    return _LEVELS[_SYSLOG[code]]


def _numbered(read: Callable[[int], int | None]) -> Callable[[Any], Severity | None]:
    """A reader of a level's number, also as text, or of its name."""

    def severity_of(level: Any) -> Severity | None:
        if isinstance(level, str) and not level.isdecimal():
            return severity(level)
        if isinstance(level, bool) or not isinstance(level, (int, str)) or len(str(level)) > 3:
            return None
        number = read(int(level))
        return None if number is None else (number, severity_text(number))

    return severity_of


SYSLOG: Final = _numbered(lambda n: severity_of_syslog(n)[0] if 0 <= n <= 7 else None)
"""0 is an emergency, 7 debug: GELF, and the journal's priority."""
PINO: Final = _numbered(lambda n: _TENS[min(n // 10, 6) - 1] if 10 <= n <= 100 else None)
"""10 is trace, 60 fatal: pino and bunyan; what lies between counts as what lies below."""
PYTHON: Final = _numbered(lambda n: _TENS[min(n // 10, 5)] if 1 <= n <= 100 else None)
"""10 is debug, 50 critical: the standard library's logging."""
OTEL: Final = _numbered(lambda n: n if 1 <= n <= 24 else None)
GOOGLE: Final = _numbered(lambda n: _HUNDREDS[n // 100] if n in range(0, 900, 100) else None)
"""0 is the default, 800 an emergency: Cloud Logging."""


_WORDS: Final = (
    "TRACE|FINEST|FINER|FINE|VERBOSE|DEBUG[1-5]?|CONFIG|INFO|INFORMATION|LOG|NOTICE|WARN|WARNING"
    "|ERR|ERROR|SEVERE|CRIT|CRITICAL|FATAL|ALERT|EMERG|EMERGENCY|PANIC"
)
_IN_LINE: Final = re.compile(
    r"^(?P<klog>[IWEF])\d{4} \d\d:"  # klog
    r"|^[\d\-]{5,10} [\d:.]{8,18} +\d+ +\d+ (?P<android>[VDIWEF]) "  # logcat
    rf"|[\[<](?:[\w.]+:)?(?P<bracket>(?i:{_WORDS}|Note))[\]>]"
    rf"|(?<![\w./=-])(?P<word>{_WORDS})(?=[\s:|,\]\-]|$)"
    r"|\b(?:level|lvl|severity)=[\"']?(?P<field>\w{3,12})"
    rf"|(?:^|: |\]: )(?P<prefix>(?i:{_WORDS})): "
)
_LINE_CHARACTERS: Final = 160


def severity_in_line(line: str) -> Severity | None:
    """Return the severity that a line names in one of the usual places; None where it names none.

    Those are a word in brackets (``[error]``), in capitals (``INFO``) or before a colon
    (``error: ``), klog's and logcat's letter, and logfmt's ``level=``; the first one counts.
    """
    found = _IN_LINE.search(line, 0, _LINE_CHARACTERS)
    return None if found is None else severity(found[str(found.lastgroup)])
