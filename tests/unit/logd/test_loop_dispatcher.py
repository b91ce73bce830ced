"""What threads tell the event loop."""

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING, cast

import pytest

from penstock.logd.intake.turn import AckRun
from penstock.logd.partition.acks import AckSender, LoopDispatcher

if TYPE_CHECKING:
    from penstock.logd.nats.link import NatsLink


class Link:
    """Notes each write of a link to NATS."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def write(self, data: bytes) -> bool:
        self.writes.append(data)
        return True


@pytest.fixture
def link() -> Link:
    return Link()


@pytest.fixture
def dispatcher() -> LoopDispatcher:
    return LoopDispatcher()


@pytest.fixture
def acks(link: Link, dispatcher: LoopDispatcher) -> AckSender:
    return AckSender(cast("NatsLink", link), dispatcher)


async def test_calls_from_threads_are_all_made_in_each_ones_order(
    dispatcher: LoopDispatcher,
) -> None:
    loop, made = asyncio.get_running_loop(), list[tuple[int, int]]()
    done = asyncio.Event()

    def note(thread: int, number: int) -> None:
        made.append((thread, number))
        if len(made) == 4_000:
            done.set()

    def post_all(thread: int) -> None:
        for number in range(1_000):
            dispatcher.post(loop, partial(note, thread, number))

    threads = [threading.Thread(target=post_all, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    await asyncio.wait_for(done.wait(), 20)
    for number, thread in enumerate(threads):
        thread.join()
        assert [call for call in made if call[0] == number] == [(number, n) for n in range(1_000)]


async def test_acks_of_calls_made_together_are_written_together_and_at_once(
    acks: AckSender, dispatcher: LoopDispatcher, link: Link
) -> None:
    loop = asyncio.get_running_loop()
    for offset in range(3):
        run = AckRun(offset, offset, [b"inbox"])
        dispatcher.post(loop, partial(acks.send_acks, "logs", 1, [run]))
    await asyncio.sleep(0)
    assert len(link.writes) == 1, "no turn of its own, and no write each"
    assert link.writes[0].count(b"PUB inbox") == 3


async def test_acks_that_nobody_gathers_are_written_at_the_end_of_the_turn(
    acks: AckSender, link: Link
) -> None:
    for offset in range(2):
        acks.send_acks("logs", 1, [AckRun(offset, offset, [b"inbox"])])
    assert link.writes == []
    await asyncio.sleep(0)
    assert [data.count(b"PUB inbox") for data in link.writes] == [2]


async def test_a_call_that_fails_keeps_no_other_from_being_made(
    dispatcher: LoopDispatcher,
) -> None:
    loop, failures = asyncio.get_running_loop(), list[str]()
    loop.set_exception_handler(lambda _, context: failures.append(str(context["exception"])))
    done = asyncio.Event()

    def fail() -> None:
        raise ValueError("a bug")

    for call in (fail, fail, done.set):
        dispatcher.post(loop, call)
    await asyncio.wait_for(done.wait(), 20)
    assert failures == ["a bug"] * 2


async def test_what_work_on_the_loop_posts_is_called_in_the_order_of_all_before_it_returns(
    acks: AckSender, dispatcher: LoopDispatcher, link: Link
) -> None:
    loop, made = asyncio.get_running_loop(), list[str]()
    posted, go_on = threading.Event(), threading.Event()

    def answer(name: str) -> None:
        made.append(name)
        acks.send_acks("logs", 1, [AckRun(0, 0, [name.encode()])])

    def post_from_a_thread() -> None:
        dispatcher.post(loop, partial(answer, "earlier"))
        posted.set()
        assert go_on.wait(20)
        dispatcher.post(loop, partial(answer, "later"))

    thread = threading.Thread(target=post_from_a_thread)
    thread.start()
    assert posted.wait(20)

    def work() -> bool:
        dispatcher.post(loop, partial(answer, "own"))
        go_on.set()
        thread.join()
        return True

    assert dispatcher.run(work)
    assert made == ["earlier", "own", "later"]
    assert len(link.writes) == 1, "in this turn, all at once"
    with pytest.raises(ZeroDivisionError):
        dispatcher.run(lambda: bool(1 / 0))
    dispatcher.post(loop, partial(answer, "after a failure"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert made[-1] == "after a failure"
    assert len(link.writes) == 2
