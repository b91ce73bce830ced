"""Who asks: nobody, until somebody says so."""

import asyncio

from penstock.logd.api.server import ResponseSlot
from penstock.logd.security.principal import (
    ANONYMOUS,
    Method,
    Principal,
    current_caller,
    end_call,
    set_caller,
)

ALICE = Principal("alice", Method.TOKEN, frozenset({"billing"}))


def test_nobody_is_anonymous() -> None:
    assert current_caller() is ANONYMOUS
    assert ResponseSlot(asyncio.Lock()).caller is ANONYMOUS
    assert ANONYMOUS.is_anonymous
    assert not ANONYMOUS.groups


async def test_a_caller_is_known_to_one_call_and_not_to_the_next_to_it() -> None:
    known = asyncio.Event()

    async def call() -> Principal:
        before = set_caller(ALICE)
        known.set()
        await asyncio.sleep(0)
        caller = current_caller()
        end_call(before)
        assert current_caller() is ANONYMOUS
        return caller

    async def other() -> Principal:
        await known.wait()
        return current_caller()

    assert list(await asyncio.gather(call(), other())) == [ALICE, ANONYMOUS]
