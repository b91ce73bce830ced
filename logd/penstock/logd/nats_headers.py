r"""The header block of a NATS message, as HMSG carries it.

    NATS/1.0[ status]\r\n
    Name: value\r\n
    ...
    \r\n

Names keep their case and order; a repeated name stays repeated. White space around a value is not
part of it (NATS ADR-4).
"""

import re
from typing import Final

from penstock.logd.errors import CorruptError
from penstock.logd.limits import HEADER_PAIRS_MAX

Pairs = tuple[tuple[str, bytes], ...]

_VERSION: Final = b"NATS/1.0"
_NAME: Final = re.compile(rb"[!-9;-~]+")  # visible ASCII but the colon


def parse_headers(block: bytes) -> Pairs:
    """Parse a header block.

    Raises:
        CorruptError: It does not follow the format, or has more than `HEADER_PAIRS_MAX` lines.
    """
    if not block.startswith(_VERSION) or not block.endswith(b"\r\n\r\n"):
        raise CorruptError("header block does not begin with NATS/1.0 or has no end")
    first, *lines = block[:-4].split(b"\r\n")
    if first != _VERSION and first[len(_VERSION) :][:1] != b" ":
        raise CorruptError(f"header block begins with {first[:40]!r}")
    if len(lines) > HEADER_PAIRS_MAX:
        raise CorruptError(f"{len(lines)} header lines; at most {HEADER_PAIRS_MAX} are taken")
    pairs = []
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not _NAME.fullmatch(name):
            raise CorruptError(f"header line {line[:80]!r} is not `Name: value`")
        pairs.append((name.decode("ascii"), value.strip(b" \t")))
    return tuple(pairs)


def format_headers(pairs: Pairs) -> bytes:
    """The block that `parse_headers` reads back."""
    lines = [name.encode("ascii") + b": " + value for name, value in pairs]
    return b"\r\n".join([_VERSION, *lines, b"", b""])
