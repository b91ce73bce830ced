"""What network sources may hold of what is not durable yet."""

import asyncio

import pytest

from penstock.collector.spool.memory_budget import Budget, Charge


async def until_waiting() -> None:
    """Let what was started come to where it waits."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_share_and_the_whole_are_bounds() -> None:
    budget = Budget(bytes_max=100, share_bytes_max=60)
    a, b = budget.share("a"), budget.share("b")
    assert a.take(60)
    assert not a.take(1)
    assert not b.take(41)
    assert b.take(40)
    assert (budget.used, a.used, b.used) == (100, 60, 40)
    a.give(60)
    assert a.take(60)
    assert (a.refused, b.refused, a.peak) == (1, 1, 60)
    assert budget.share("a") is a


async def test_other_bounds_let_go_on_who_waits_and_keep_what_is_held() -> None:
    budget = Budget(bytes_max=100, share_bytes_max=50)
    a = budget.share("a")
    assert a.take(50)
    waits = asyncio.ensure_future(a.wait(20))
    await until_waiting()
    assert not waits.done()
    budget.limit(bytes_max=100, share_bytes_max=80)
    assert await waits
    budget.limit(bytes_max=40, share_bytes_max=80)
    assert (a.used, a.bytes_max) == (70, 40)
    assert not a.take(1)
    a.give(40)
    assert a.take(1)


async def test_who_waits_goes_on_in_the_order_of_asking_and_nobody_overtakes() -> None:
    budget = Budget(bytes_max=100, share_bytes_max=100)
    a, b = budget.share("a"), budget.share("b")
    assert a.take(90)
    done: list[str] = []

    async def wait(name: str, share_name: str, size: int) -> None:
        assert await budget.share(share_name).wait(size)
        done.append(name)

    asked = (("1", "a", 50), ("2", "a", 10), ("3", "b", 40))
    tasks = [asyncio.ensure_future(wait(*one)) for one in asked]
    await until_waiting()
    assert not a.take(1), "others wait"
    assert done == []
    a.give(40)
    await until_waiting()
    assert done == ["1"]
    a.give(50)
    await until_waiting()
    assert done == ["1", "2", "3"]
    await asyncio.gather(*tasks)
    assert (a.used, b.used, budget.used) == (60, 40, 100)


async def test_no_source_starves_while_others_take_turns() -> None:
    """Two that always have somebody waiting take nothing that a third waited for longer."""
    budget = Budget(bytes_max=100, share_bytes_max=60)
    a, b, c = (budget.share(name) for name in "abc")
    assert a.take(50)
    assert b.take(50)
    starving = asyncio.ensure_future(c.wait(60))
    await until_waiting()
    turns = [asyncio.ensure_future(share.wait(50)) for share in (a, b)]
    await until_waiting()
    a.give(50)
    await until_waiting()
    assert not any(turn.done() for turn in turns), "nobody overtakes"
    assert not b.take(10), "not in passing either"
    b.give(50)
    await until_waiting()
    assert starving.done()
    c.give(60)
    await asyncio.wait_for(asyncio.gather(*turns), 5)
    assert (a.used, b.used, c.used, budget.used) == (50, 50, 0, 100)


async def test_who_waits_for_its_own_share_holds_up_nobody_else() -> None:
    budget = Budget(bytes_max=100, share_bytes_max=40)
    a, b = budget.share("a"), budget.share("b")
    assert a.take(40)
    waiting = asyncio.ensure_future(a.wait(10))
    await until_waiting()
    assert b.take(30)
    assert await b.wait(10, timeout_s=0)
    a.give(40)
    assert await waiting


async def test_who_wants_nothing_more_gets_it_though_there_is_no_room() -> None:
    share = Budget(bytes_max=10, share_bytes_max=10).share("a")
    assert share.take(10)
    waiting = asyncio.ensure_future(share.wait(1))
    await until_waiting()
    assert share.take(0)
    assert await share.wait(0, timeout_s=0)
    assert (share.used, share.refused) == (10, 0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_who_waits_too_long_or_is_cancelled_holds_nothing() -> None:
    budget = Budget(bytes_max=10, share_bytes_max=10)
    share = budget.share("a")
    with Charge(share) as charge:
        assert charge.take(10)
        assert not await share.wait(5, timeout_s=0)
        waiting = asyncio.ensure_future(share.wait(5))
        behind = asyncio.ensure_future(share.wait(3))
        await until_waiting()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert await behind
    assert (budget.used, share.refused) == (3, 1)


async def test_what_is_granted_to_who_just_left_goes_to_the_next() -> None:
    budget = Budget(bytes_max=10, share_bytes_max=10)
    share = budget.share("a")
    assert share.take(10)
    first, second = (asyncio.ensure_future(share.wait(10)) for _ in range(2))
    await until_waiting()
    share.give(10)
    first.cancel()  # granted in this turn already
    await until_waiting()
    assert first.cancelled()
    assert second.done()
    assert budget.used == 10


def test_a_charge_is_parted_without_a_change_of_the_whole() -> None:
    budget = Budget(bytes_max=10, share_bytes_max=10)
    with Charge(budget.share("a")) as charge:
        assert charge.take(10)
        part = charge.split(4)
    assert (budget.used, part.size, charge.size) == (4, 4, 0)
    part.close()
    part.close()
    assert budget.used == 0


async def test_what_has_grown_beyond_the_bounds_is_waited_for() -> None:
    budget = Budget(bytes_max=100, share_bytes_max=50)
    a, b = budget.share("a"), budget.share("b")
    charge = Charge(a)
    assert charge.take(20)
    charge.grow(10)
    assert (charge.size, a.used) == (20, 20)
    charge.grow(60)
    assert (charge.size, a.used, a.is_within, b.is_within) == (60, 60, False, True)
    assert not a.take(1)
    assert not await a.settled(0.01)
    assert a.refused == 2
    waits = asyncio.ensure_future(a.settled(60))
    charge.split(5).close()
    await until_waiting()
    assert not waits.done()
    charge.split(5).close()
    assert await waits
    other = Charge(b)
    other.grow(90)
    assert not a.is_within, "the whole is used up"
    other.close()
    charge.close()
    assert await a.settled(60)
    assert budget.used == 0
