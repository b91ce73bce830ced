"""Lines that belong together: stack traces as the runtimes print them, and patterns.

The texts in tests/golden/stack_traces were printed by OpenJDK 17, CPython 3.11, Go and Ruby 3.1;
that of .NET follows the form of `Exception.ToString` and of the console logger.
"""

from pathlib import Path
from typing import Any

import pytest

from penstock.collector.sources.files.boundaries import Boundaries
from penstock.collector.sources.files.container_lines import read_plain
from penstock.collector.sources.files.multiline import Joiner
from penstock.collector.sources.files.settings import MultilineSection
from penstock.collector.sources.line_framing import LineCutter

GOLDEN = Path(__file__).parents[2] / "golden" / "stack_traces"
RUBY_FRAME = "shop.rb:4:in `rescue in pay'"
FIRST_LINES = {
    "java": [
        "2026-01-02 03:04:05 ERROR checkout failed",
        "2026-01-02 03:04:06 INFO next",
        'Exception in thread "main" java.lang.IllegalStateException: cannot pay order 8',
    ],
    "python": [
        "2026-11-27 16:19:40,555 ERROR checkout failed",
        "2026-11-27 16:19:40,561 ERROR next",
    ],
    "go": [
        "2026/11/27 16:20:53 http: panic serving 127.0.0.1:60736: assignment to entry in nil map",
        "2026/11/27 16:20:53 next",
        "panic: runtime error: invalid memory address or nil pointer dereference",
    ],
    "dotnet": [
        "fail: Shop.Checkout[0]",
        "info: Shop.Checkout[0]",
        "Unhandled exception. System.InvalidOperationException: cannot pay order 8",
    ],
    "ruby": [
        f"E, [2026-01-02T03:04:05] ERROR -- : {RUBY_FRAME}: cannot pay order 7 (RuntimeError)",
        "I, [2026-01-02T03:04:06] INFO -- : next",
        "Traceback (most recent call last):",
        f"{RUBY_FRAME}: cannot pay order 9 (RuntimeError)",
    ],
}  # fmt: skip


def events_of(text: str, **patterns: Any) -> list[str]:
    """What a file of this text becomes."""
    joiner = Joiner(read_plain, Boundaries(**patterns), bytes_max=32_768, held_bytes_max=1 << 20)
    _, found = joiner.feed(0, LineCutter(32_768).feed(text.encode()), 0)
    if joiner.start is not None:
        found += joiner.flush()[1]
    return [event.text.decode() for event in found]


@pytest.mark.parametrize("language", FIRST_LINES)
@pytest.mark.parametrize("others", [[], ["go", "java"]])
def test_a_stack_trace_goes_on_with_the_line_above_it(language: str, others: list[str]) -> None:
    text = (GOLDEN / f"{language}.txt").read_text()
    events = events_of(text, presets=[language, *others])
    assert [event.splitlines()[0] for event in events] == FIRST_LINES[language]
    assert "\n".join(events) + "\n" == text, "no byte is lost"


@pytest.mark.parametrize("language", FIRST_LINES)
def test_lines_that_are_no_trace_are_events_each(language: str) -> None:
    lines = [
        "2026-01-02 INFO one", "GET /at 200", "{}", "-- ready --", "key: value", "https://a.b:80/x",
        "Error: that is no class", "from here on", "main.go:12: a message", "ok",
    ]  # fmt: skip
    assert events_of("\n".join(lines) + "\n", presets=[language]) == lines


def test_an_end_pattern_ends_an_event_at_once() -> None:
    text = "BEGIN a\nb\nCOMMIT;\nc\nBEGIN d\ne\n"
    assert events_of(text, start="^BEGIN", end=";$") == ["BEGIN a\nb\nCOMMIT;", "c", "BEGIN d\ne"]
    assert events_of(text, end=";$") == ["BEGIN a\nb\nCOMMIT;", "c\nBEGIN d\ne"]


def test_an_end_is_looked_for_in_the_whole_line() -> None:
    long = "x" * 5000
    assert events_of(f"{long};\n{long}\nb;\n", end=";$") == [f"{long};", f"{long}\nb;"]


def test_a_continuation_beside_a_preset_goes_on_with_an_event() -> None:
    text = "one\n| two\n\tat a.B(C.java)\nthree\n"
    found = events_of(text, continuation=r"^\|", presets=["java"])
    assert found == ["one\n| two\n\tat a.B(C.java)", "three"]


@pytest.mark.parametrize(
    "section",
    [
        {},
        {"start": "^a", "continuation": "^b"},
        {"start": "^a", "extends": "java"},
        {"extends": "cobol"},
        {"end": "(a"},
    ],
)
def test_patterns_that_say_nothing_together_are_refused(section: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"leave out|set `start`|should be|\(a"):
        MultilineSection.model_validate(section)


def test_one_preset_may_be_named_without_a_list() -> None:
    assert MultilineSection.model_validate({"extends": "java"}).extends == ["java"]
