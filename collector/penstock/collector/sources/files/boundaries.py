"""Borders of events of several lines: patterns, and presets of languages.

A preset is a small state machine, because a stack trace cannot be told line by line: what stands
below `Traceback (most recent call last):` and is not indented ends a trace of Python, and is a line
like any other elsewhere. Each rule says after which states a line of its pattern goes on with the
event, and which state follows. A line that no rule knows begins another event.

The forms are those that the runtimes print: `Throwable.printStackTrace` of Java, `traceback` of
Python, `panic` of Go, `Exception.ToString` and the console logger of .NET, `full_message` of Ruby.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.collector.limits import MULTILINE_LOOK_BYTES
from penstock.collector.regex import compile_pattern

_PLAIN: Final = ""
"""The state of an event whose last line is not part of a stack trace."""
_ANY: Final = None

_Rules = Sequence[tuple[str | None, str, str]]
"""After which states (separated by spaces; ``-``: a plain line; None: any), the pattern, the state
that follows."""


@dataclass(frozen=True, slots=True)
class _Preset:
    """The form of a language's stack traces.

    Attributes:
        first: Pattern and state of lines that begin an event and are part of a trace.
        then: Rules for the lines that continue one.
    """

    first: Sequence[tuple[str, str]]
    then: _Rules


_JAVA_CLASS: Final = r"(?:[a-zA-Z_$][\w$]*\.)+[A-Z][\w$]*(?:Exception|Error|Throwable|Failure)\b"
_PYTHON_TRACEBACK: Final = r"^Traceback \(most recent call last\):"
_PYTHON_GROUP: Final = r"^[ \t]+\+ Exception Group Traceback \(most recent call last\):"
_GO_ROUTINE: Final = r"^goroutine \d+ (?:gp=\S+ m=\S+ (?:mp=\S+ )?)?\[[^\]]+\]:"
_DOTNET_CLASS: Final = r"(?:[A-Z]\w*\.)+\w*Exception(?::| \(|$)"
_RUBY_FRAME: Final = r"\S+:\d+:in [`'][^`']+'"

_PRESETS: Final = {
    "java": _Preset(
        [(r'^Exception in thread "', "trace"), (f"^{_JAVA_CLASS}", "trace")],
        [
            (_ANY, r"^[ \t]+at \S", "trace"),
            (_ANY, r"^[ \t]+\.\.\. \d+ (?:more|common frames omitted)", "trace"),
            (_ANY, r"^[ \t]*(?:Caused by|Suppressed|Wrapped by): ", "trace"),
            ("-", f"^{_JAVA_CLASS}", "trace"),
        ],
    ),
    "python": _Preset(
        [(_PYTHON_TRACEBACK, "frames"), (_PYTHON_GROUP, "frames")],
        [
            ("- chained", _PYTHON_TRACEBACK, "frames"),
            ("- chained", _PYTHON_GROUP, "frames"),
            ("frames raised", r"^[ \t]+", "frames"),
            ("frames", r"^[A-Za-z_][\w.]*(?:[:(]|$)", "raised"),
            ("frames raised chained", r"^$", "chained"),
            ("chained", r"^(?:During handling of|The above exception was) .*:$", "chained"),
        ],
    ),
    "go": _Preset(
        [(r"^(?:panic|fatal error|runtime error): ", "panic"), (_GO_ROUTINE, "stack")],
        [
            ("panic", r"^$|^\[signal |^[ \t]+(?:panic: |\S)|^(?:panic: |runtime stack:)", "panic"),
            ("- panic stack", _GO_ROUTINE, "stack"),
            ("panic stack", r"^\S.*\(.*\)$|^created by |^\.\.\.additional frames elided", "stack"),
            ("stack", r"^\t\S|^$|^[a-z0-9]+ +0x[0-9a-f]+$|^exit status \d+$", "stack"),
        ],
    ),
    "dotnet": _Preset(
        [(r"^Unhandled exception[.:] ", "trace"), (f"^{_DOTNET_CLASS}", "trace")],
        [
            (_ANY, r"^[ \t]+at \S", "trace"),
            (_ANY, r"^[ \t]*---> \S", "trace"),
            (_ANY, r"^[ \t]*--- End of (?:inner exception )?stack trace", "trace"),
            ("-", r"^ {6}", ""),
            ("-", f"^{_DOTNET_CLASS}", "trace"),
        ],
    ),
    "ruby": _Preset(
        [(r"^Traceback \(most recent call last\)", "reversed"), (f"^{_RUBY_FRAME}: ", "raised")],
        [
            (_ANY, r"^[ \t]+from \S+:\d+(?::in |$)", "frames"),
            ("frames", f"^{_RUBY_FRAME}: ", "raised"),
            ("reversed reversed_cause", r"^[ \t]+\d+: from \S", "reversed"),
            ("reversed", f"^{_RUBY_FRAME}: ", "reversed_cause"),
            (_ANY, rf"^[ \t]*{_RUBY_FRAME}$", "frames"),
        ],
    ),
}


class Boundaries:
    """Tells where events begin and end; a line is looked at in its first KiB.

    Args:
        start: A line with it begins an event, and every other line goes on with one.
        continuation: A line with it goes on with an event.
        end: A line with it is the last of its event; searched in the whole line.
        presets: Names of `_PRESETS`; a line goes on with an event if a rule of any says so.
    """

    def __init__(
        self,
        *,
        start: str | None = None,
        continuation: str | None = None,
        end: str | None = None,
        presets: Sequence[str] = (),
    ) -> None:
        self._start = None if start is None else compile_pattern(start.encode())
        self._end = None if end is None else compile_pattern(end.encode())
        self._all_go_on = continuation is None and not presets
        self._first: list[tuple[Any, str]] = []
        self._then: list[tuple[frozenset[str] | None, Any, str]] = []
        if continuation is not None:
            self._then.append((None, compile_pattern(continuation.encode()), _PLAIN))
        for name in presets:
            preset = _PRESETS[name]
            self._first += [
                (compile_pattern(pattern.encode()), f"{name}.{state}")
                for pattern, state in preset.first
            ]
            for after, pattern, state in preset.then:
                then = f"{name}.{state}" if state else _PLAIN
                self._then.append((_states(name, after), compile_pattern(pattern.encode()), then))

    def first(self, line: bytes) -> str:
        """Return the state of an event that a line begins."""
        head = line[:MULTILINE_LOOK_BYTES]
        return next((state for pattern, state in self._first if pattern.search(head)), _PLAIN)

    def follow(self, state: str, line: bytes) -> str | None:
        """Return the state of an event that a line goes on with; None: it begins another."""
        head = line[:MULTILINE_LOOK_BYTES]
        if self._start is not None and self._start.search(head) is not None:
            return None
        for after, pattern, then in self._then:
            if (after is None or state in after) and pattern.search(head) is not None:
                return then
        return state if self._all_go_on else None

    def ends(self, line: bytes) -> bool:
        """Return whether a line is the last of its event, whatever follows."""
        return self._end is not None and self._end.search(line) is not None


def _states(name: str, after: str | None) -> frozenset[str] | None:
    if after is None:
        return None
    return frozenset(_PLAIN if one == "-" else f"{name}.{one}" for one in after.split())
