"""What senders were promised against what arrived: nothing lost, repeated, changed or overtaken.

- acknowledged: it arrived, or was put aside
- arrived: it was issued, and is as it was sent
- the order of a sender's records is that in which it sent them, but for repeats
- repeats: no more for each crash than the sender had under way
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

_LETTERS: Final = str.maketrans("0123456789abcdef", "ghijklmnopqrstuv")
_SHOWN: Final = 5

Arrived = tuple[str, int] | str
"""A sender and a number that it issued; or what nobody sent, as it reads."""


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


def each_once(acked: int, issued: int) -> Claims:
    """All up to a number must be there, those up to another may; in any order, none again."""
    return Claims(issued, set(range(acked)), ordered=False, window=0)


def text_of(sender: str, number: int) -> str:
    """What a sender says under a number; no other text is that."""
    digest = sha256(f"{sender} {number}".encode()).hexdigest().translate(_LETTERS)
    return f"{sender} {number} {digest[: 8 + number % 50]}"


def read_text(text: str) -> Arrived:
    """Who said this, and under which number."""
    sender, _, rest = text.partition(" ")
    number = rest.partition(" ")[0]
    whole = number.isdecimal() and text == text_of(sender, int(number))
    return (sender, int(number)) if whole else text


def judge(
    claims: Mapping[str, Claims],
    arrived: Iterable[Arrived],
    aside: Iterable[Arrived] = (),
    *,
    crashes: int = 0,
) -> list[str]:
    """Say which promises were broken.

    Args:
        claims: By sender.
        arrived: In the order in which it is there.
        aside: Put where an operator finds it.
        crashes: How often the part under test ended without a drain.

    Returns:
        A line for each; empty when all were kept.
    """
    broken: list[str] = []
    there: dict[str, Counter[int]] = {sender: Counter() for sender in claims}
    highest: dict[tuple[str, int], int] = {}
    for sender, number in _issued(claims, arrived, "arrived", broken):
        claim = claims[sender]
        among = (sender, number // claim.span if claim.span else 0)
        last = highest.get(among, -1)
        if number not in there[sender] and number < last and claim.ordered:
            broken.append(f"{sender}: {number} came first after {last}")
        highest[among] = max(last, number)
        there[sender][number] += 1
    kept = set(_issued(claims, aside, "put aside", broken))
    for sender, claim in claims.items():
        gone = sorted(n for n in claim.acked - there[sender].keys() if (sender, n) not in kept)
        if gone:
            broken.append(f"{sender}: {len(gone)} acknowledged and gone, as {gone[:_SHOWN]}")
        repeats = there[sender].total() - len(there[sender])
        if repeats > claim.window * crashes:
            again = [number for number, times in there[sender].items() if times > 1][:_SHOWN]
            broken.append(f"{sender}: {repeats} repeats for {crashes} crashes, as {again}")
    return broken


def _issued(
    claims: Mapping[str, Claims], found: Iterable[Arrived], where: str, broken: list[str]
) -> list[tuple[str, int]]:
    issued: list[tuple[str, int]] = []
    foreign: list[str] = []
    for one in found:
        if not isinstance(one, str) and one[0] in claims and one[1] in range(claims[one[0]].issued):
            issued.append(one)
        else:
            foreign.append(str(one)[:120])
    if foreign:
        broken.append(f"{len(foreign)} {where} and never issued, as {foreign[:_SHOWN]}")
    return issued
