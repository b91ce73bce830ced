"""Which connections go, against a dumb version of the rules and by cases."""

import random
from collections.abc import Callable
from typing import ClassVar

from typing_extensions import override

from penstock.logd.liftbridge.unauthenticated import Connection, Crowd, Peer, peer_of

PATIENCE_NS = 15_000_000_000
_S = 1_000_000_000


def crowd(*, known_max: int = 4, strangers_max: int = 8) -> Crowd:
    return Crowd(known_max=known_max, strangers_max=strangers_max, patience_ns=PATIENCE_NS)


def peers(*hosts: str) -> dict[Connection, Peer]:
    return {Connection(n): Peer(host, 1000 + n) for n, host in enumerate(hosts)}


def test_the_first_of_the_address_with_most_gives_its_place_up() -> None:
    there = peers("10.0.0.9", *["10.0.0.1"] * 4, "10.0.0.2", "10.0.0.2", "10.0.0.3")
    found = crowd()
    assert found.look(there, 0) == []
    there[Connection(50)] = Peer("10.0.0.3", 1)  # one more than there are places
    assert found.look(there, 1) == [Connection(1)]
    assert (found.strangers, found.known) == (8, 0)


def test_no_address_has_more_than_half_of_the_places() -> None:
    there = peers(*["10.0.0.1"] * 7)
    assert crowd().look(there, 0) == [Connection(0), Connection(1), Connection(2)]
    there = peers(*[f"2001:db8::{n}" for n in range(7)])  # one network
    assert len(crowd().look(there, 0)) == 3
    there = peers(*[f"2001:db8:{n}::1" for n in range(7)])
    assert crowd().look(there, 0) == []


def test_who_is_known_stays_whoever_comes() -> None:
    found, there = crowd(), peers("10.0.0.1", "10.0.0.1")
    found.vouch(there[Connection(0)])  # before anybody has looked
    found.look(there, 0)
    assert (found.known, found.strangers) == (1, 1)
    there |= {Connection(n): Peer("10.0.0.1", 2000 + n) for n in range(10, 90)}
    gone = found.look(there, 1)
    assert Connection(0) not in gone
    assert Connection(1) in gone
    late = found.look({Connection(0): there[Connection(0)]}, 100 * PATIENCE_NS)
    assert (late, found.known) == ([], 1)


def test_a_stranger_stays_a_while_only_and_a_vouched_one_is_none() -> None:
    found, there = crowd(), peers("10.0.0.1", "10.0.0.2")
    assert found.look(there, 0) == []
    found.vouch(there[Connection(1)])
    assert found.look(there, PATIENCE_NS - 1) == []
    assert found.look(there, PATIENCE_NS) == [Connection(0)]
    patient = Crowd(known_max=1, strangers_max=8, patience_ns=None)
    assert [patient.look(there, n * PATIENCE_NS) for n in (0, 9)] == [[], []]


def test_a_call_before_its_connection_is_seen_counts_and_an_old_one_does_not() -> None:
    found, there = crowd(), peers("10.0.0.1")
    found.vouch(there[Connection(0)])
    found.look({}, 0)  # it was made while that was looked at
    found.look(there, 1)
    assert found.known == 1
    found = crowd()
    found.vouch(there[Connection(0)])
    for now in (0, 1, 2):
        found.look({}, now)
    found.look(there, 3)  # another one, of the same port
    assert (found.known, found.strangers) == (0, 1)


def test_of_known_ones_beyond_what_may_be_the_last_go() -> None:
    found = crowd(known_max=2)
    there = peers("10.0.0.1", "10.0.0.2", "10.0.0.3")
    for number in (2, 0):
        found.vouch(there[Connection(number)])
        found.look(there, number)
    found.vouch(there[Connection(1)])
    assert found.look(there, 5) == [Connection(1)]


def test_a_name_that_comes_again_for_another_is_a_stranger() -> None:
    found, there = crowd(), peers("10.0.0.1")
    found.vouch(there[Connection(0)])
    found.look(there, 0)
    found.look({Connection(0): Peer("10.0.0.7", 9)}, 1)
    assert (found.known, found.strangers) == (0, 1)


def test_whatever_comes_bounds_hold_and_who_is_known_stays() -> None:
    for seed in range(30):
        rng = random.Random(seed)
        found, there = crowd(known_max=100), dict[Connection, Peer]()
        known: set[Connection] = set()
        for step in range(25):
            for _ in range(rng.randrange(12)):
                one = Connection(rng.randrange(1 << 30))
                there[one] = Peer(f"10.0.0.{rng.randrange(6)}", rng.randrange(1 << 16))
            for one in [one for one in there if rng.random() < 0.05]:
                known.add(one)
                found.vouch(there[one])
            gone = found.look(there, step * _S)
            assert not known & set(gone)
            assert len(set(gone)) == len(gone)
            for one in gone:
                del there[one]
            strangers = [peer.host for one, peer in there.items() if one not in known]
            assert len(strangers) <= 8
            assert max(map(strangers.count, strangers), default=0) <= 4


def test_addresses_that_mean_the_same_are_one() -> None:
    assert peer_of("::ffff:10.0.0.1", 5) == peer_of("10.0.0.1", 5) == Peer("10.0.0.1", 5)
    assert peer_of("fe80::1%eth0", 5) == Peer("fe80::1", 5)


class Slow(Peer):
    """Is looked at while somebody vouches for it, once."""

    looks: ClassVar[list[Callable[[], object]]] = []

    @override
    def __hash__(self) -> int:
        while self.looks:
            self.looks.pop()()
        return tuple.__hash__(self)


def test_no_word_for_somebody_is_lost_to_a_look_at_the_same_time() -> None:
    found, there = crowd(), peers("10.0.0.1")
    Slow.looks.append(lambda: found.look(there, 0))
    found.vouch(Slow(*there[Connection(0)]))
    assert not Slow.looks, "it was looked in the middle"
    found.look(there, 1)
    assert (found.known, found.strangers) == (1, 0)
