"""The ids that the spec library makes."""

import os
import random

from penstock.base import clock

_IDS = random.Random(os.urandom(32))  # noqa: S311 - ids, which are no secrets; quicker by far


def record_id() -> str:
    """A new UUID version 7 (RFC 9562) as 32 hex digits: its first 48 bits are milliseconds."""
    milliseconds = clock.unix_ns() // 1_000_000 & 0xFFFF_FFFF_FFFF
    noise = int.from_bytes(os.urandom(10), "big")
    value = milliseconds << 80 | 0x7 << 76 | (noise >> 68 & 0xFFF) << 64
    value |= 0b10 << 62 | noise & 0x3FFF_FFFF_FFFF_FFFF
    return f"{value:032x}"


def instance_id() -> str:
    """A new ``service.instance.id``: UUID version 4 with dashes."""
    value = bytearray(os.urandom(16))
    value[6] = value[6] & 0x0F | 0x40
    value[8] = value[8] & 0x3F | 0x80
    text = value.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def trace_id() -> str:
    """A new one, 32 hex digits; never all zero."""
    return f"{_IDS.getrandbits(128) or 1:032x}"


def _reseed() -> None:
    """Draw a new seed in a forked child, which would repeat its parent's ids otherwise."""
    _IDS.seed(os.urandom(32))


os.register_at_fork(after_in_child=_reseed)
