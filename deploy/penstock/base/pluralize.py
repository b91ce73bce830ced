"""Counts in sentences."""


def pluralize(number: int, noun: str, *, form: str = "") -> str:
    """A number and what it counts: `1 record`, `2 records`, `3 batches`.

    Args:
        number: The number.
        noun: The noun for one.
        form: The number's format, for `format`.
    """
    return f"{number:{form}} {noun if number == 1 else _several(noun)}"


def _several(noun: str) -> str:
    if noun.endswith("ry"):
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("ch", "s", "x")) else f"{noun}s"
