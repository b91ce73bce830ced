"""What `penstock collector sources` prints: every source and its options, from the models."""

from collections.abc import Iterator

from penstock.collector.source_sections import SOURCE_TYPES
from penstock.service.options import option_lines


def describe_sources() -> Iterator[str]:
    """Lines: each source's type and purpose, then its keys with type and default."""
    for model in SOURCE_TYPES:
        yield from option_lines(model)
