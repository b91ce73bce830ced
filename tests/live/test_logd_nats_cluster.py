"""Real servers that come, go, say so beforehand, or change what they permit."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import nats
import pytest

from penstock.logd.nats.link import LinkState, LinkTiming
from tests.support.links import LinkUnderTest, running_link
from tests.support.nats_server import NatsServer, nats_server
from tests.support.processes import free_port
from tests.support.relay import Relay, relaying
from tests.support.waiting import wait_until_async

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]


@contextmanager
def cluster(directory: Path) -> Iterator[tuple[NatsServer, NatsServer]]:
    """Two servers that know each other."""
    own = ("--cluster", "nats://127.0.0.1:-1", "--cluster_name", "c")
    with (
        nats_server(directory / "a", *own) as first,
        nats_server(directory / "b", *own, "--routes", first.routes) as second,
    ):
        yield first, second


async def publish(url: str, *payloads: bytes) -> None:
    client = await nats.connect(url, allow_reconnect=False)
    for payload in payloads:
        await client.publish("t.a", payload)
    await client.drain()


def at(link: LinkUnderTest, server: NatsServer) -> bool:
    """Whether the link is connected there and its subscription stands."""
    return link.shown() == f"127.0.0.1:{server.port}" and link.states()[-1] is LinkState.RESTORED


async def test_a_server_the_cluster_named_takes_over_when_one_is_killed(tmp_path: Path) -> None:
    with cluster(tmp_path) as (first, second):
        async with running_link({"url": first.url}, "t.>") as link:
            await wait_until_async(lambda: len(link.servers) == 2, what="the second is learned")
            first.kill()
            await wait_until_async(lambda: at(link, second), what="moved to the second")
            assert link.states()[-3:-1] == [LinkState.LOST, LinkState.CONFIRMED]
            await publish(second.url, b"two")
            await wait_until_async(lambda: link.payloads == [b"two"], what="its message")


async def test_a_lame_duck_is_left_before_it_hangs_up_and_nothing_comes_twice(
    tmp_path: Path,
) -> None:
    with cluster(tmp_path) as (first, second):
        async with running_link({"url": first.url}, "t.>") as link:
            await wait_until_async(lambda: len(link.servers) == 2, what="the second is learned")
            numbers = [b"%d" % number for number in range(3000)]
            publisher = await nats.connect(second.url)
            for number in numbers:
                if number == b"1000":
                    first.signal("ldm")
                await publisher.publish("t.a", number)
                if len(number) == 4:
                    await publisher.flush()
            await wait_until_async(lambda: at(link, second), what="moved to the second")
            await publisher.publish("t.a", b"last")
            await publisher.close()
            await wait_until_async(lambda: b"last" in link.payloads, what="the last")
            first.kill()  # else it waits for its grace period
            assert link.moves == 1
            assert len(link.payloads) == len(set(link.payloads))
            assert [n for n in numbers if n in set(link.payloads)] == link.payloads[:-1]


async def test_of_several_urls_any_that_works_is_used(tmp_path: Path) -> None:
    with nats_server(tmp_path / "nats") as server:
        urls = [f"nats://127.0.0.1:{free_port()}", server.url]
        for order in (urls, urls[::-1]):
            async with running_link({"url": ",".join(order)}, "t.>") as link:
                assert link.shown() == f"127.0.0.1:{server.port}"


@asynccontextmanager
async def held_route(directory: Path) -> AsyncIterator[tuple[NatsServer, NatsServer, Relay]]:
    """Two servers; what the first tells the second can be held back."""
    own = ("--cluster", "nats://127.0.0.1:-1", "--cluster_name", "c")
    with nats_server(directory / "a", *own) as first:
        async with relaying(first.routes.removeprefix("nats://")) as relay:
            route = ("--routes", f"nats://{relay.address}")
            second = await asyncio.to_thread(NatsServer, directory / "b", *own, *route)
            try:
                yield first, second, relay
            finally:
                second.close()


async def test_a_subscription_is_confirmed_when_other_servers_route_to_it(
    tmp_path: Path,
) -> None:
    async with held_route(tmp_path) as (first, second, relay):
        patient, hasty = LinkTiming(proof_s=30), LinkTiming(proof_s=0.1)
        async with running_link({"url": first.url}, "t.first", timing=patient) as link:
            await wait_until_async(lambda: len(link.servers) == 2, what="the second is learned")
            relay.flowing.clear()
            waiting = asyncio.create_task(link.confirmed(link.subscribe("t.>")))
            await link.flush(20)  # its own server has it
            await publish(second.url, b"early")
            assert not waiting.done(), "the other one routes nothing to it"
            relay.flowing.set()
            await waiting
            await publish(second.url, b"late")
            await wait_until_async(lambda: link.payloads == [b"late"], what="what came after")
            assert link.unproven == 0
        async with running_link({"url": first.url}, "t.first", timing=hasty) as link:
            await wait_until_async(lambda: len(link.servers) == 2, what="the second is learned")
            before = link.unproven
            relay.flowing.clear()
            await link.confirmed(link.subscribe("t.other"))
            assert link.unproven == before + 1, "it is told, and nobody waits for ever"
            relay.flowing.set()


async def test_a_link_that_may_not_be_probed_says_so_and_works(tmp_path: Path) -> None:
    own = "cluster {name: c, listen: '127.0.0.1:-1', ROUTES}\n"
    config = permit(tmp_path / "nats.conf", '"t.>"')
    users = config.read_text()
    config.write_text(users + own.replace(", ROUTES", ""))
    with nats_server(tmp_path / "a", config=config) as first:
        config.write_text(users + own.replace("ROUTES", f"routes: ['{first.routes}']"))
        with nats_server(tmp_path / "b", config=config):
            settings = {"url": first.url, "user": "u", "password": "p"}
            async with running_link(settings, "t.>") as link:
                await wait_until_async(lambda: len(link.servers) == 2, what="the second is learned")
                await link.confirmed(link.subscribe("t.a"))
                assert link.unproven
                assert link.denials() == {}


def permit(path: Path, subjects: str) -> Path:
    users = f"{{user: u, password: p, permissions: {{subscribe: [{subjects}], publish: [t.a]}}}}"
    path.write_text(f"authorization {{users: [{users}, {{user: a, password: a}}]}}\n")
    return path


async def test_one_denied_subject_keeps_no_other_waiting_and_comes_back_when_permitted(
    tmp_path: Path,
) -> None:
    config, port = permit(tmp_path / "nats.conf", '"t.>", "other"'), free_port()
    settings = {"url": f"nats://127.0.0.1:{port}", "user": "u", "password": "p"}
    server = NatsServer(tmp_path / "nats", port=port, config=config)
    async with running_link(settings, "other", "t.>") as link:
        server.close()
        permit(config, '"t.>"')
        with nats_server(tmp_path / "nats", port=port, config=config) as server:
            await wait_until_async(lambda: link.reconnects == 1, what="reconnected")
            await wait_until_async(lambda: link.denials() != {}, what="one is denied")
            assert list(link.denials()) == [b"1"]
            await publish(f"nats://a:a@127.0.0.1:{port}", b"one")
            await wait_until_async(lambda: link.payloads == [b"one"], what="the other works")
            permit(config, '"t.>", "other"')
            server.signal("reload")

            def taken_up() -> bool:
                link.resume(b"1")
                return link.denials() == {}

            await wait_until_async(taken_up, what="permitted again")
            assert link.connected


async def test_a_permission_taken_away_is_noticed_while_connected(tmp_path: Path) -> None:
    config = permit(tmp_path / "nats.conf", '"t.>", "other"')
    with nats_server(tmp_path / "nats", config=config) as server:
        settings = {"url": server.url, "user": "u", "password": "p"}
        async with running_link(settings, "other", "t.>") as link:
            permit(config, '"t.>"')
            server.signal("reload")
            await wait_until_async(lambda: list(link.denials()) == [b"1"], what="it is told")
            assert link.connected


async def test_a_denied_publish_is_counted_and_is_no_problem_of_the_connection(
    tmp_path: Path,
) -> None:
    config = permit(tmp_path / "nats.conf", '"t.>"')
    with nats_server(tmp_path / "nats", config=config) as server:
        settings = {"url": server.url, "user": "u", "password": "p"}
        async with running_link(settings, "t.>") as link:
            assert link.write(b"PUB _INBOX.x 0\r\n\r\n" * 3)
            await link.flush(20)
            assert (link.publishes_denied, link.problem, link.connected) == (3, "", True)
