"""Regular expressions in RE2's syntax, which take time in proportion to the text."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import re2

PATTERN_CHARACTERS_MAX: Final = 4096


def compile_pattern(pattern: str | bytes, *, max_characters: int = PATTERN_CHARACTERS_MAX) -> Any:
    """A regular expression, of texts or of bytes.

    Raises:
        ValueError: It is none, or too long; the library writes nothing itself.
    """
    if len(pattern) > max_characters:
        raise ValueError(f"the pattern is longer than {max_characters} characters")
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        said = error.args[0].decode() if isinstance(error.args[0], bytes) else str(error)
        raise ValueError(f"is no pattern of RE2: {said}") from None


def groups_finder(pattern: str, groups: Sequence[int]) -> Callable[[str], list[str | None] | None]:
    """Return a function that gives the texts of groups where a pattern is first found in a text.

    None stands for a group that is not there, and for all where the pattern is not found. It looks
    at the text's bytes: where RE2 found something among a text's characters takes Python longer to
    say than RE2 to find it.

    Args:
        pattern: One that `compile_pattern` takes.
        groups: Numbers of groups.
    """
    if "\\C" in pattern:  # a group may be a part of a character
        search_text = compile_pattern(pattern, max_characters=len(pattern)).search

        def find_characters(text: str) -> list[str | None] | None:
            match = search_text(text)
            return None if match is None else [match[group] for group in groups]

        return find_characters
    encoded = pattern.encode()
    search = compile_pattern(encoded, max_characters=len(encoded)).search

    def find(text: str) -> list[str | None] | None:
        raw = text.encode()
        match = search(raw)
        if match is None:
            return None
        spans = map(match.span, groups)
        return [None if begin < 0 else raw[begin:end].decode() for begin, end in spans]

    return find
