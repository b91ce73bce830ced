"""What the senders were promised against what arrived: pure, so that it can be tested itself.

- acknowledged => delivered or in quarantine
- delivered => issued, with the same bytes
- the order of a sender's records is that in which it sent them, but for repeats
- repeats: no more for each crash than the sender had under way
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

_LETTERS: Final = str.maketrans("0123456789abcdef", "ghijklmnopqrstuv")


@dataclass(slots=True)
class Claims:
    """What one sender knows.

    Attributes:
        issued: Its numbers run from 0 to before this.
        acked: Those it was promised.
        ordered: Whether its records come in the order of their numbers.
        span: Where that holds only among so many, counted from 0; 0: among all.
        window: How many may be repeated for each crash.
    """

    issued: int = 0
    acked: set[int] = field(default_factory=set)
    ordered: bool = True
    span: int = 0
    window: int = 1


def text_of(sender: str, number: int) -> str:
    """What a sender says under a number; no other text is that."""
    digest = sha256(f"{sender} {number}".encode()).hexdigest().translate(_LETTERS)
    return f"{sender} {number} {digest[: 8 + number % 50]}"


def judge(
    claims: Mapping[str, Claims],
    delivered: Iterable[str],
    quarantined: Iterable[str],
    *,
    crashes: int,
) -> list[str]:
    """Say which promises were broken.

    Args:
        claims: By sender.
        delivered: Texts in logd, in the order of their offsets.
        quarantined: Texts in quarantine.
        crashes: How often the collector ended without a drain.

    Returns:
        A line for each; empty when all were kept.
    """
    broken: list[str] = []
    arrived: dict[str, Counter[int]] = {sender: Counter() for sender in claims}
    highest: dict[tuple[str, int], int] = {}
    for text in delivered:
        found = _read(text, claims)
        if found is None:
            broken.append(f"delivered and never issued: {text[:120]!r}")
            continue
        sender, number = found
        claim = claims[sender]
        among = (sender, number // claim.span if claim.span else 0)
        last = highest.get(among, -1)
        if number not in arrived[sender] and number < last and claim.ordered:
            broken.append(f"{sender}: {number} came first after {last}")
        highest[among] = max(last, number)
        arrived[sender][number] += 1
    kept: dict[str, set[int]] = {sender: set() for sender in claims}
    for text in quarantined:
        found = _read(text, claims)
        if found is None:
            broken.append(f"in quarantine and never issued: {text[:120]!r}")
        else:
            kept[found[0]].add(found[1])
    for sender, claim in claims.items():
        missing = sorted(claim.acked - arrived[sender].keys() - kept[sender])
        if missing:
            broken.append(f"{sender}: {len(missing)} acknowledged and gone, as {missing[:5]}")
        repeats = arrived[sender].total() - len(arrived[sender])
        if repeats > claim.window * crashes:
            broken.append(f"{sender}: {repeats} repeats for {crashes} crashes")
    return broken


def _read(text: str, claims: Mapping[str, Claims]) -> tuple[str, int] | None:
    sender, _, rest = text.partition(" ")
    number = rest.partition(" ")[0]
    if sender not in claims or not number.isdecimal() or int(number) >= claims[sender].issued:
        return None
    return (sender, int(number)) if text == text_of(sender, int(number)) else None
