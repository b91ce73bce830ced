"""Regular expressions in RE2's syntax, which take time in proportion to the text."""

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
