"""The command line against a real logd, as a person or a script calls it."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nats
import orjson
import pyarrow as pa
import pytest
from click.testing import CliRunner

from penstock.logd.cli import cli
from penstock.logd.publisher.publisher import partition_of
from tests.support.logd import Logd
from tests.support.logd_cluster import LogdCluster
from tests.support.processes import free_port

pytestmark = pytest.mark.live

LOADED = """
import sys
from penstock.logd.cli import cli
try:
    cli(sys.argv[1:])
except SystemExit as end:
    assert not end.code, end.code
print()
print(*sys.modules)
"""
SLOW = {"asyncio", "duckdb", "nats", "numpy", "pyarrow", "pydantic", "rich", "structlog"}


@pytest.fixture
def logd(tmp_path: Path, nats_url: str) -> Iterator[Logd]:
    with Logd(tmp_path / "logd", nats_url, []) as running:
        yield running


def command(logd: Logd | None, *arguments: str) -> tuple[int, bytes, str]:
    """Run a command in this process; its exit code, standard output and standard error."""
    server = logd.fetch if logd else f"127.0.0.1:{free_port()}"
    done = CliRunner().invoke(cli, [*arguments, "--server", server])
    return done.exit_code, done.stdout_bytes, done.stderr


async def publish(url: str, *payloads: bytes) -> None:
    client = await nats.connect(url)
    for payload in payloads:
        await client.jetstream().publish("t.a", payload, headers={"K": "v"})
    await client.close()


@pytest.mark.parametrize(
    "asked",
    [
        "streams ls", "streams ls --json", "streams info logs", "match t.a", "gaps", "acl ls",
        "quotas ls", "groups ls", "cursors ls", "cluster info",
    ],
)  # fmt: skip
def test_a_command_that_lists_imports_neither_arrow_nor_an_event_loop(
    logd: Logd, asked: str
) -> None:
    with logd.client() as log:
        log.create_stream("logs", "t.>")
    arguments = [sys.executable, "-c", LOADED, *asked.split(), "--server", logd.fetch]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert sorted(SLOW & set(done.stdout.splitlines()[-1].split())) == []


async def test_a_stream_from_creation_to_deletion(logd: Logd, nats_url: str) -> None:
    assert command(logd, "streams", "create", "logs", "--subject", "t.>")[0] == 0
    await publish(nats_url, b"one", b"\xfftwo", b"three")
    code, out, _ = command(logd, "streams", "ls")
    assert code == 0
    assert out.decode().splitlines()[1].split()[:4] == ["logs", "ok", "3", "3"]
    assert orjson.loads(command(logd, "streams", "ls", "--json")[1])["name"] == "logs"
    assert b"dedup_window_s" in command(logd, "streams", "info", "logs")[1]
    assert command(logd, "match", "t.x")[1] == b"logs\n"

    lines = command(logd, "tail", "logs")[1].splitlines()
    assert [line.split(b"  ")[0] for line in lines] == [b"0", b"1", b"2"]
    assert lines[0].endswith(b"t.a  one")
    (last,) = command(logd, "tail", "logs", "--from", "2", "--json")[1].splitlines()
    document = orjson.loads(last)
    assert (document["offset"], document["value"]) == (2, "three")
    assert document["headers"] == [["K", "v"]]

    ndjson = command(logd, "fetch", "logs", "--from", "1")[1].splitlines()
    assert [orjson.loads(line)["offset"] for line in ndjson] == [1, 2]
    assert "value_base64" in orjson.loads(ndjson[0])
    arrow = command(logd, "fetch", "logs", "--to", "2", "--format", "arrow")[1]
    table = pa.ipc.open_stream(arrow).read_all()
    assert table.column("value").to_pylist() == [b"one", b"\xfftwo"]

    assert command(logd, "streams", "delete", "logs", "--yes")[0] == 0
    assert command(logd, "streams", "ls", "--json")[1] == b""


def test_errors_name_a_fix_and_have_exit_codes(logd: Logd) -> None:
    code, _, error = command(logd, "tail", "nothing")
    assert code == 1
    assert "UNKNOWN_STREAM" in error
    assert "fix: list the streams" in error
    code, _, error = command(logd, "streams", "create", "x", "--subject", ">")
    assert code == 1
    assert "wildcard" in error
    assert command(logd, "tail", "logs", "--from", "yesterday")[0] == 64
    assert command(logd, "nonsense")[0] == 64
    code, out, _ = command(logd, "acl", "test", "read", "logs", "--principal", "bob")
    assert (code, out.decode().split(";")[0]) == (0, "allowed: authorization is off (auth.acl)")
    assert command(logd, "streams", "create", "logs", "--subject", "t.>")[0] == 0
    for verb in ("tail", "fetch"):
        code, _, error = command(logd, verb, "logs", "--from", "7")
        assert (code, "7 of logs is not in 0 to 0" in error) == (1, True)
    assert command(logd, "fetch", "logs", "--from", "latest", "--to", "0")[0] == 0
    code, _, error = command(logd, "streams", "create", "b d", "--subject", "t.b")
    assert (code, error.startswith("error: name: stream name 'b d'")) == (1, True)
    code, _, error = command(None, "streams", "ls")
    assert code == 69
    assert "--server" in error


async def test_a_killed_logd_leaves_a_directory_that_check_and_repair_understand(
    logd: Logd, nats_url: str
) -> None:
    assert command(logd, "streams", "create", "logs", "--subject", "t.>")[0] == 0
    await publish(nats_url, *(b"%d" % number for number in range(20)))
    words = ["check", str(logd.data_dir)]
    assert CliRunner().invoke(cli, words).exit_code == 69
    assert CliRunner().invoke(cli, [*words, "--live"]).exit_code == 0
    logd.daemon.kill()
    for verb in ("check", "repair", "check"):
        done = CliRunner().invoke(cli, [verb, str(logd.data_dir)])
        assert done.exit_code == 0, done.output
    done = CliRunner().invoke(cli, ["repair", str(logd.data_dir)])
    assert done.stdout.startswith("nothing to repair")
    done = CliRunner().invoke(cli, ["dump", str(logd.data_dir), "logs", "--format", "ndjson"])
    values = [orjson.loads(line)["value"] for line in done.stdout.splitlines()]
    assert values == [str(number) for number in range(20)]
    logd.daemon.start()
    assert logd.values("logs") == [b"%d" % number for number in range(20)]


def test_every_command_explains_itself_with_an_example() -> None:
    for words in ([], ["streams", "create"], ["streams", "ls"], ["tail"], ["fetch"], ["match"]):
        done = CliRunner().invoke(cli, [*words, "--help"])
        assert done.exit_code == 0
        assert "Example" in done.stdout


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penstock.logd", "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "penstock logd" in done.stdout


async def test_cursors_are_set_listed_and_deleted(logd: Logd, nats_url: str) -> None:
    assert command(logd, "streams", "create", "logs", "--subject", "t.>")[0] == 0
    await publish(nats_url, b"one", b"two", b"three")
    set_billing = ["cursors", "set", "billing", "logs"]
    assert command(logd, *set_billing, "3")[:2] == (0, b"billing reads logs/0 from 3 on\n")
    code, out, _ = command(logd, *set_billing, "1", "--json")
    assert (code, orjson.loads(out)["offset"]) == (0, 1)
    assert command(logd, "cursors", "set", "audit", "logs", "0")[0] == 0
    lines = command(logd, "cursors", "ls")[1].decode().splitlines()
    assert [line.split() for line in lines] == [
        ["CONSUMER", "STREAM", "PARTITION", "OFFSET", "LAG"],
        ["audit", "logs", "0", "0", "3"],
        ["billing", "logs", "0", "1", "2"],
    ]
    listed = ["cursors", "ls", "--json", "--stream", "logs"]
    (found,) = command(logd, *listed, "--consumer", "billing")[1].splitlines()
    assert (orjson.loads(found)["lag"], orjson.loads(found)["current"]) == (2, True)
    for wrong, code_of in (
        (["cursors", "set", "billing", "logs", "4"], "OUT_OF_RANGE"),
        (["cursors", "set", "billing", "none", "0"], "UNKNOWN_STREAM"),
        (["cursors", "set", "a b", "logs", "0"], "BAD_CONSUMER"),
        ([*set_billing, "0", "--partition", "7"], "UNKNOWN_PARTITION"),
    ):
        code, _, error = command(logd, *wrong)
        assert (code, code_of in error, "fix: correct the " in error) == (1, True, False)
    assert command(logd, *set_billing, "soon")[0] == 64
    deleting = ["cursors", "delete", "billing", "logs"]
    assert command(logd, *deleting)[:2] == (0, b"the cursor of billing in logs/0 is deleted\n")
    assert command(logd, *deleting)[:2] == (0, b"the cursor of billing in logs/0 was not there\n")
    assert orjson.loads(command(logd, *deleting, "--json")[1])["deleted"] is False


def test_limits_are_set_at_creation_and_shown(logd: Logd) -> None:
    create = ["streams", "create", "few", "--subject", "t.few"]
    code, _, error = command(logd, *create, "--discard", "new")
    assert code == 1
    assert "discard: new needs retention.bytes or retention.messages" in error
    assert command(logd, *create, "--retention-bytes", "5")[0] == 1
    limits = ["--retention-age-s", "60", "--retention-messages", "9", "--discard", "new"]
    assert command(logd, *create, *limits)[0] == 0
    shown = dict(
        line.split(maxsplit=1) for line in command(logd, "streams", "info", "few")[1].splitlines()
    )
    assert shown[b"retention.age_s"] == b"60"
    assert shown[b"retention.bytes"] == b"none"
    assert (shown[b"retention.messages"], shown[b"discard"]) == (b"9", b"new")


async def test_the_directory_of_a_cluster_node_is_checked_repaired_and_dumped(
    tmp_path: Path, nats_url: str
) -> None:
    with LogdCluster(tmp_path, nats_url, size=1) as cluster:
        cluster.create("logs", "c.a", partitions=2, replication_factor=1)
        node = cluster.nodes["a"]
        client = await nats.connect(nats_url)
        for number in range(20):
            await client.jetstream().publish("c.a", b"%d" % number)
        await client.close()
        data = str(node.data_dir)
        done = CliRunner().invoke(cli, ["check", data])
        assert (done.exit_code, "is in use by process" in done.stderr) == (69, True)
        done = CliRunner().invoke(cli, ["check", data, "--live"])
        assert done.exit_code == 0, done.output
        assert [row.split()[:2] for row in done.stdout.splitlines() if "logs" in row[:5]] == [
            ["logs", "0"],
            ["logs", "1"],
        ]
        assert node.daemon.stop() == 0
        done = CliRunner().invoke(cli, ["check", data, "--json"])
        report = orjson.loads(done.stdout)
        assert (done.exit_code, report["verdict"]) == (0, "sound"), done.output
        found = [(p["stream"], p["partition"], p["records"]) for p in report["partitions"]]
        assert [one for one in found if one[0] == "logs"] == [("logs", 0, 20), ("logs", 1, 0)]
        done = CliRunner().invoke(cli, ["repair", data])
        assert (done.exit_code, done.stdout.splitlines()[0]) == (0, "nothing to repair")
        done = CliRunner().invoke(cli, ["dump", data, "logs", "--json"])
        assert [orjson.loads(line)["value"] for line in done.stdout.splitlines()] == [
            str(number) for number in range(20)
        ]
        (log,) = sorted(node.data_dir.glob("streams/logs-*/0"))
        alone = CliRunner().invoke(cli, ["check", str(log), "--json"])
        assert orjson.loads(alone.stdout)["partitions"][0]["stream"] == "logs"

        (segment,) = sorted(node.data_dir.glob("cluster/raft/*.wal"))
        sound = segment.read_bytes()
        segment.write_bytes(sound[:100] + bytes([sound[100] ^ 1]) + sound[101:])
        done = CliRunner().invoke(cli, ["check", data])
        assert done.exit_code == 65
        assert f"damage: {segment}" in done.stdout
        assert "this node does not start" in done.stdout
        assert "logs " in done.stdout, "streams are named by their directories"
        node.daemon.launch()
        assert node.daemon.wait(within_s=30) == 65, "what check says is so"
        segment.write_bytes(sound)
        log.rename(tmp_path / "elsewhere")
        done = CliRunner().invoke(cli, ["check", data])
        assert done.exit_code == 65
        assert "partition 0 of stream 'logs' has lost its directory" in done.stdout


def test_publish_asks_how_many_partitions_there_are_and_says_which_has_stored_it(
    tmp_path: Path, nats_url: str
) -> None:
    """A key that went to partition 0 without a word would not be in order with its others."""
    with LogdCluster(tmp_path, nats_url, size=1) as cluster:
        cluster.create("logs", "c.a", partitions=2, replication_factor=1)
        words = ["publish", "c.a", "x", "--nats", nats_url, "--server", cluster.nodes["a"].fetch]
        assert CliRunner().invoke(cli, words).stdout == "stored in logs/0 at offset 0\n"
        key = next(f"k{n}" for n in range(100) if partition_of(b"k%d" % n, 2) == 1)
        done = CliRunner().invoke(cli, [*words, "--key", key])
        assert done.stdout == "stored in logs/1 at offset 0\n"
        done = CliRunner().invoke(cli, [*words, "--key", key, "--json"])
        assert orjson.loads(done.stdout)["partition"] == 1
        words[1] = "c.a.1"
        assert CliRunner().invoke(cli, words).stdout == "stored in logs/1 at offset 2\n"
