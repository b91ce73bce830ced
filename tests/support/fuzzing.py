"""Requests that are nearly right: what a fuzzer sends, drawn from one seed.

`PENSTOCK_FUZZ_CASES` multiplies how many there are, `PENSTOCK_FUZZ_SEED` draws others; `make fuzz`
sets both.
"""

import os
from collections.abc import Mapping
from random import Random
from typing import Any, Final

SEED: Final = int(os.environ.get("PENSTOCK_FUZZ_SEED", "0"))
_TIMES: Final = int(os.environ.get("PENSTOCK_FUZZ_CASES", "1"))

_WORDS: Final = (
    "", "logs", "logs ", "LOGS", "__cursors", "..", "../../etc/passwd", "/etc/passwd", "a/b",
    "a\\b",
    "%2e%2e%2f", "\x00", "logs\x00", "\u202elogs", "é", "'; drop table", "t.a", "t.>", ">",
    "*", "t..a", ".", "$SYS.>", "_INBOX.x", "x" * 65, "x" * 5000, "earliest", "latest", "true",
    "aes-256-gcm", "all", "0", "-1", "NaN",
)  # fmt: skip
_NUMBERS: Final = (
    0, 1, -1, 2, 7, 255, 65_536, 2**31 - 1, 2**31, -(2**31), 2**53, 2**63 - 1, -(2**63), 2**64 - 1,
    0.0, -0.5, 1e308, 1.5,
)  # fmt: skip


def cases(count: int) -> int:
    """How many cases a test runs."""
    return count * _TIMES


def any_value(rng: Random, depth: int = 0) -> Any:
    """A JSON value of any kind."""
    kinds: list[Any] = [None, rng.random() < 0.5, rng.choice(_NUMBERS), rng.choice(_WORDS)]
    if depth < 4:
        some = range(rng.randrange(4))
        kinds.append([any_value(rng, depth + 1) for _ in some])
        kinds.append({rng.choice(_WORDS): any_value(rng, depth + 1) for _ in some})
        kinds.append([rng.choice(_WORDS)] * (1500 if depth == 0 else 3))
    return rng.choice(kinds)


def mutated(rng: Random, document: Mapping[str, Any]) -> dict[str, Any]:
    """A document with a few values changed, left out, put in, or nested."""
    changed = dict(document)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        key = rng.choice([*changed, "id"])
        if key == "api" and rng.random() < 0.8:  # or most of them are of no api
            continue
        match rng.randrange(5):
            case 0:
                changed[key] = any_value(rng)
            case 1:
                known = _WORDS if isinstance(changed.get(key), str) else _NUMBERS
                changed[key] = rng.choice(known)
            case 2:
                changed.pop(key, None)
            case 3:
                changed[rng.choice(_WORDS)] = any_value(rng)
            case _:
                inner = changed.get(key)
                if isinstance(inner, dict):
                    changed[key] = mutated(rng, inner)
                elif isinstance(inner, list) and inner and isinstance(inner[0], dict):
                    changed[key] = [mutated(rng, inner[0]), *inner[1:]]
                else:
                    changed[key] = [inner]
    return changed


def mutated_bytes(rng: Random, data: bytes) -> bytes:
    """Bytes with a few changed, cut out, doubled or put in."""
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(changed) + 1)
        match rng.randrange(6):
            case 0 if at < len(changed):
                changed[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(changed):
                changed[at] = rng.choice((0, 0x7F, 0x80, 0xFF))
            case 2:
                changed[at:at] = rng.randbytes(rng.choice((1, 2, 10, 200)))
            case 3:
                del changed[at : at + rng.choice((1, 4, 64))]
            case 4:
                changed[at:at] = b"\xff" * rng.choice((1, 4, 9, 10, 11))
            case _:
                changed += changed[at : at + 64]
    return bytes(changed)
