"""The commands about nodes and replicas, against nodes that stand in for a cluster."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner

from penstock.logd.cli import cli
from tests.support.logd import Logd
from tests.support.standin_cluster import StandIn, standin_cluster

pytestmark = pytest.mark.live


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[StandIn]:
    async with standin_cluster(tmp_path) as found:
        yield found


async def command(cluster: StandIn, *words: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    arguments = [*words, "--server", cluster.addresses]
    done = await asyncio.to_thread(CliRunner().invoke, cli, arguments)
    return done.exit_code, done.stdout, done.stderr


async def test_nodes_are_listed_with_what_they_lead_and_have(cluster: StandIn) -> None:
    await cluster.nodes["c"].kill()
    code, out, _ = await command(cluster, "cluster", "info")
    assert code == 0
    summary, *rest = out.splitlines()
    assert summary.startswith("cluster demo; 2 of 3 nodes live; 1 partition, 0 without a leader")
    lines = [line.split() for line in rest]
    a, c = (cluster.nodes[name].address for name in ("a", "c"))
    assert lines[0] == ["NODE", "STATE", "LIVE", "LEADS", "REPLICAS", "ROLE", "RACK", "FETCH"]
    assert lines[1] == ["a", "active", "yes", "1", "1", "controller", "-", a]
    assert lines[3] == ["c", "active", "no", "0", "1", "-", "-", c]
    found = orjson.loads((await command(cluster, "cluster", "info", "--json"))[1])["nodes"]
    assert (found[0]["node"], found[0]["leads"], found[0]["controller"]) == ("a", 1, True)
    cluster.leader = None
    assert "no node is the controller" in (await command(cluster, "cluster", "info"))[2]


async def test_a_node_is_drained(cluster: StandIn) -> None:
    assert (await command(cluster, "cluster", "drain", "b", "--no-wait"))[0] == 0
    assert cluster.changes.pop() == ("drain", "b", False)


async def test_streams_are_listed_with_leader_and_isr(cluster: StandIn) -> None:
    await cluster.publish(3)
    row = (await command(cluster, "streams", "ls"))[1].splitlines()[1].split()
    assert row[:4] == ["logs", "ok", "3", "3"]
    assert row[6:] == ["a", "3/3", "t.>"]
    await cluster.nodes["b"].kill()
    assert (await command(cluster, "streams", "ls"))[1].splitlines()[1].split()[1] == "degraded"
    shown = (await command(cluster, "streams", "info", "logs"))[1]
    assert "isr               " in shown
    assert "a, c" in shown
    cluster.leader = None
    row = (await command(cluster, "streams", "ls"))[1].splitlines()[1].split()
    assert row[1:] == ["leaderless", "-", "-", "-", "-", "2/3", "not", "b", "t.>"]
    document = orjson.loads((await command(cluster, "streams", "ls", "--json"))[1])
    assert document["partitions"][0]["leader"] is None


async def test_a_leader_that_refuses_publishers_keeps_no_node_from_being_stopped(
    cluster: StandIn,
) -> None:
    cluster.refusal = "the disk is full"
    code, out, below = await command(cluster, "streams", "ls")
    assert out.splitlines()[1].split()[1] == "refusing"
    assert below == "a refuses publishers: the disk is full\n"
    code, out, _ = await command(cluster, "cluster", "wait", "--seconds", "0")
    assert (code, out.startswith("every node lives")) == (0, True)
    await cluster.nodes["b"].kill()
    code, _, error = await command(cluster, "cluster", "wait", "--seconds", "0")
    assert (code, "node b is away, logs is refusing" in error) == (69, True)


CHANGES: list[tuple[str, Any]] = [
    ("cluster drain b --no-wait", ("drain", "b", False)),
    ("cluster undrain b", ("drain", "b", True)),
    ("cluster remove b --yes", ("remove_node", "b")),
    ("cluster step-down", ("step_down", None)),
    ("cluster step-down --to c", ("step_down", "c")),
    ("streams pause logs", ("set_mode", "logs", True, None, None)),
    ("streams pause logs --hold", ("set_mode", "logs", True, None, True)),
    ("streams resume logs", ("set_mode", "logs", False, None, None)),
    ("streams readonly logs", ("set_mode", "logs", None, True, None)),
    ("streams writable logs", ("set_mode", "logs", None, False, None)),
    ("streams move logs --to b,c --no-wait", ("move", "logs", 0, ("b", "c"))),
    ("streams move logs --cancel", ("move", "logs", 0, None)),
    ("streams observers logs --on b,c", ("observe", "logs", 0, ("b", "c"))),
    ("streams observers logs --partition 1 --none", ("observe", "logs", 1, ())),
    (
        "streams alter logs --retention-bytes 1048576 --replication-factor all --min-isr 2",
        (
            "alter", "logs",
            {"retention": {"bytes": 1048576}, "replication_factor": "all", "min_isr": 2},
        ),
    ),
    (
        "streams alter logs --unset min-isr --unset retention-age-s --retention-messages 9",
        ("alter", "logs", {"min_isr": None, "retention": {"age_s": None, "messages": 9}}),
    ),
]  # fmt: skip


async def test_changes_reach_the_cluster(cluster: StandIn) -> None:
    for words, change in CHANGES:
        code, out, error = await command(cluster, *words.split())
        assert (code, error) == (0, "")
        assert out
        assert cluster.changes.pop() == change, words
    words = "streams create new --subject n.> --partitions 4 --replication-factor 3 --min-isr 2"
    assert (await command(cluster, *words.split()))[0] == 0
    verb, name, asked = cluster.changes.pop()
    assert (verb, name) == ("create", "new")
    assert (asked["partitions"], asked["replication_factor"], asked["min_isr"]) == (4, 3, 2)
    begun = await command(cluster, "cluster", "rebalance", "--no-wait")
    assert begun == (0, "begun: 7 moves\n", "")
    for options in ("--json", "--json --no-wait"):
        done = await command(cluster, "cluster", "rebalance", *options.split())
        assert (done[0], orjson.loads(done[1]), done[2]) == (
            0,
            {"moves": 7, "done": "--no-wait" not in options},
            "",
        )


async def test_an_election_that_loses_records_is_confirmed_and_says_what_is_lost(
    cluster: StandIn,
) -> None:
    for partition, lost in enumerate(
        ("lost: at most 4 records, from offset 5 on", "no record is lost", "is not known here")
    ):
        words = ("streams", "elect", "logs", "--partition", str(partition))
        code, out, _ = await command(cluster, *words, "--lose-records")
        assert code == 0
        assert lost in out
        assert cluster.changes.pop() == ("elect", "logs", partition)
    code, out, error = await command(cluster, "streams", "elect", "logs")  # nobody says yes
    assert (code, out, cluster.changes) == (1, "", []), error
    assert "Lose what is only there, for ever?" in error


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("cluster remove x", "there is no node 'x'; the cluster has a, b, c (UNKNOWN_NODE)"),
        ("streams elect logs --partition 1", "stream 'logs' has no partition 1"),
    ],
)
async def test_what_is_not_there_is_said_before_a_question(
    cluster: StandIn, words: str, said: str
) -> None:
    code, _, error = await command(cluster, *words.split())
    assert (code, "[y/N]" in error) == (1, False)
    assert said in error
    assert (await command(cluster, "cluster", "remove", "b"))[2].count("[y/N]") == 1


async def test_what_cannot_be_done_has_an_exit_code_and_a_fix(cluster: StandIn) -> None:
    code, _, error = await command(cluster, "cluster", "drain", "x")
    assert (code, "fix: list the nodes" in error) == (1, True)
    assert (await command(cluster, "streams", "open", "logs", "--node", "c"))[0] == 0
    code, _, error = await command(cluster, "streams", "open", "logs", "--node", "x")
    assert (code, "fix: list the nodes" in error) == (1, True)
    for words in (
        "streams alter logs",
        "streams move logs",
        "streams move logs --to a --cancel",
        "streams observers logs",
        "streams create x --subject x --replication-factor none",
    ):
        assert (await command(cluster, *words.split()))[0] == 64, words
    assert cluster.changes == []


def test_one_node_does_what_three_do(tmp_path: Path, nats_url: str) -> None:
    def asked(*words: str) -> tuple[int, str, str]:
        done = CliRunner().invoke(cli, [*words, "--server", logd.fetch])
        return done.exit_code, done.stdout, done.stderr

    with Logd(tmp_path, nats_url, [{"name": "logs", "subject": "t.>"}]) as logd:
        row = asked("cluster", "info")[1].splitlines()[2].split()
        assert row == ["logd-1", "active", "yes", "1", "1", "controller", "-", logd.fetch]
        for words in (
            "streams pause logs",
            "streams resume logs",
            "streams readonly logs",
            "streams writable logs",
            "streams alter logs --retention-messages 9",
            "streams create x --subject x --partitions 2",
            "cluster rebalance",
        ):
            assert asked(*words.split())[0] == 0, words
        for words, code in (
            ("streams create y --subject y --replication-factor 3", "NOT_ENOUGH_NODES"),
            ("streams move logs --to b --no-wait", "UNKNOWN_NODE"),
            ("cluster step-down", "NO_CANDIDATE"),
        ):
            status, out, error = asked(*words.split())
            assert (status, out, code in error) == (1, "", True), (words, error)
