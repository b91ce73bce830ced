"""Counts in sentences."""


def counted(number: int, noun: str, *, form: str = "") -> str:
    """A number and what it counts: `1 record`, `2 records`, `3 batches`.

    Args:
        number: How many.
        noun: Of one.
        form: Of the number, as `format` takes it.
    """
    ending = "" if number == 1 else "es" if noun.endswith(("ch", "s", "x")) else "s"
    return f"{number:{form}} {noun}{ending}"
