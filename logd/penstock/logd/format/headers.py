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

Pairs = tuple[tuple[str, bytes], ...]

_VERSION: Final = b"NATS/1.0"
# A name is visible ASCII but the colon. With `*+` nothing is tried twice: a block costs its length.
# Groups are repeated without: Python before 3.11.5 finds no match then.
_LINE: Final = rb"([!-9;-~]++):[ \t]*+([^\r]*+(?:\r(?!\n)[^\r]*+)*)\r\n"
_LINES: Final = re.compile(_LINE)
_BLOCK: Final = re.compile(rb"NATS/1\.0(?: [^\r]*+)?\r\n(?:%b)*\r\n" % _LINE)


def parse_headers(block: bytes, pairs_max: int) -> Pairs:
    """Parse a header block.

    Raises:
        CorruptError: It does not follow the format, or has more than `pairs_max` lines.
    """
    if not _BLOCK.fullmatch(block):
        raise CorruptError(_fault(block))
    first = block.index(b"\r\n") + 2
    found = _LINES.findall(block, first)
    if len(found) > pairs_max:
        raise CorruptError(f"{len(found)} header lines; at most {pairs_max} are taken")
    return tuple([(name.decode("ascii"), value.rstrip(b" \t")) for name, value in found])


def _fault(block: bytes) -> str:
    """Return what is wrong with a malformed header block."""
    if not block.startswith(_VERSION) or not block.endswith(b"\r\n\r\n"):
        return "header block does not begin with NATS/1.0 or has no end"
    first, *lines = block[:-4].split(b"\r\n")
    bad = [line for line in lines if not _LINES.fullmatch(line + b"\r\n")]
    if bad:
        return f"header line {bad[0][:80]!r} is not `Name: value`"
    return f"header block begins with {first[:40]!r}"


def format_headers(pairs: Pairs) -> bytes:
    """The block that `parse_headers` reads back."""
    lines = [name.encode("ascii") + b": " + value for name, value in pairs]
    return b"\r\n".join([_VERSION, *lines, b"", b""])
