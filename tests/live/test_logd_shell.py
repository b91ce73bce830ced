"""The verbs of the command line against one logd, as a person or a script calls them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import orjson
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from penstock.logd.cli import cli
from penstock.logd.errors import RefusedError
from tests.support.logd import Logd
from tests.support.nats_server import running_nats_server
from tests.support.processes import free_port
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

CLEAR = b"\x1b[2J\xc2\x9b2J"


class Shell:
    """Commands of one logd."""

    def __init__(self, logd: Logd, nats_url: str) -> None:
        self.logd = logd
        self.environment = {"PENSTOCK_LOGD_SERVER": logd.fetch, "PENSTOCK_LOGD_NATS": nats_url}

    def __call__(self, *words: str, given: bytes | None = None) -> Result:
        return CliRunner().invoke(cli, words, input=given, env=self.environment)

    def does(self, *words: str, given: bytes | None = None) -> str:
        """What a command says that is done."""
        done = self(*words, given=given)
        assert done.exit_code == 0, done.output
        assert done.stderr == ""
        return done.stdout

    def stream(self, name: str) -> None:
        self.does("streams", "create", name, "--subject", f"{name}.>")


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    directory = tmp_path_factory.mktemp("shell")
    with running_nats_server(directory / "nats") as url, Logd(directory / "logd", url, []) as logd:
        yield Shell(logd, url)


def test_arguments_files_and_lines_are_published(shell: Shell, tmp_path: Path) -> None:
    shell.stream("pub")
    file = tmp_path / "whole"
    file.write_bytes(b"two\nlines")
    said = shell.does(
        "publish", "pub.a", "one", "--file", str(file), "--header", "K=v", "--key", "k"
    )
    assert said.splitlines() == ["stored in pub at offset 0", "stored in pub at offset 1"]
    first, whole = (orjson.loads(line) for line in shell.does("tail", "pub", "--json").splitlines())
    assert (first["value"], first["key"], first["headers"][0]) == ("one", "k", ["K", "v"])
    assert whole["value"] == "two\nlines"
    lines = b"".join(b"line %d\r\n" % number for number in range(1000))
    said = shell.does("publish", "pub.b", given=lines)
    assert said.startswith("1,000 records stored: pub 2 to 1001 (")
    last = shell.does("tail", "pub", "--from", "1001").split("  ")
    assert (last[2], last[3]) == ("pub.b", "line 999\n")
    acks = [
        orjson.loads(a) for a in shell.does("publish", "pub.c", "x", "y", "--json").splitlines()
    ]
    assert [ack["offset"] for ack in acks] == [1002, 1003]
    for said in (
        "stored in pub at offset 1004\n",
        "stored in pub at offset 1004, as it was before\n",
    ):
        assert shell.does("publish", "pub.a", "once", "--id", "7") == said
    shell.does("publish", "pub.a", "--tombstone", "--key", "k")
    assert shell.does("tail", "pub", "--from", "1005").endswith("(tombstone)\n")


def test_what_is_not_stored_is_told(shell: Shell) -> None:
    shell.does("streams", "create", "small", "--subject", "small.>", "--max-message-bytes", "1024")
    done = shell("publish", "small.a", given=b"ok\n" + b"x" * 2000 + b"\nnever\n")
    assert done.exit_code == 1
    assert "MESSAGE_TOO_LARGE" in done.stderr
    assert "record 2 of the input is not stored" in done.stderr
    assert "fix: publish less at a time" in done.stderr
    assert done.stdout.startswith("1 record stored: small 0 to 0")
    done = shell("publish", "nobody.a", "x", "--retry-s", "0")
    assert (done.exit_code, done.stdout) == (69, "")
    assert "no stream stores it" in done.stderr
    assert shell("publish", "small.*", "x").exit_code == 64
    assert shell("match", "nobody.a").exit_code == 1
    assert shell.does("match", "small.a") == "small\n"


@pytest.mark.parametrize(
    ("name", "option"), [("quiet", ("--ack-policy", "none")), ("audit", ("--no-ack-on-reply",))]
)
def test_a_stream_that_does_not_answer_gets_records_in_batches_which_it_answers(
    shell: Shell, name: str, option: tuple[str, ...]
) -> None:
    """Said to be away, it would be published to again, and store everything twice."""
    shell.does("streams", "create", name, "--subject", f"{name}.>", *option)
    words = ("publish", f"{name}.a", "--key", "k")
    assert shell.does(*words, "one", "--header", "K=v") == f"stored in {name} at offset 0\n"
    assert shell.does(*words, "--tombstone") == f"stored in {name} at offset 1\n"
    one, gone = (orjson.loads(row) for row in shell.does("tail", name, "--json").splitlines())
    assert (one["value"], one["key"], one["headers"]) == ("one", "k", [["K", "v"]])
    assert (gone["key"], gone["value"]) == ("k", None)
    done = shell("publish", f"{name}.a", "x", "--id", "7")
    assert (done.exit_code, "only those have an --id" in done.stderr) == (64, True)
    elsewhere = ("--server", f"127.0.0.1:{free_port()}", "--retry-s", "0")
    done = shell("publish", f"{name}.a", "unasked", *elsewhere)
    assert (done.exit_code, done.stdout) == (69, "")
    assert "record 1 of the input may be stored" in done.stderr
    assert "fix: look before you publish again" in done.stderr
    assert shell.does("tail", name, "--from", "2").endswith("  unasked\n")


def test_without_logd_to_ask_a_key_needs_the_number_of_partitions(shell: Shell) -> None:
    shell.stream("asked")
    words = ("publish", "asked.a", "x", "--server", f"127.0.0.1:{free_port()}")
    assert shell.does(*words) == "stored in asked at offset 0\n"
    done = shell(*words, "--key", "k")
    assert (done.exit_code, done.stdout) == (69, "")
    assert "fix: name logd's fetch address with --server, or give --partitions" in done.stderr
    assert shell.does(*words, "--key", "k", "--partitions", "1") == "stored in asked at offset 1\n"


def test_records_are_found_by_header_subject_and_time(shell: Shell) -> None:
    shell.stream("find")
    shell.does("publish", "find.a", '{"a":[1,2]}', "--header", "level=info")
    shell.does("publish", "find.b", "second", "--header", "level=error", "--header", "job=7")
    after = orjson.loads(shell.does("tail", "find", "--json").splitlines()[1])["timestamp_ns"]
    for words, offsets in (
        (["--header", "level=error"], [1]),
        (["--header", "level"], [0, 1]),
        (["--header", "level", "--header", "job=7"], [1]),
        (["--header", "job=8"], []),
        (["--subject", "*.a"], [0]),
        (["--from", "1h"], [0, 1]),
        (["--from", "2000-01-01"], [0, 1]),
        (["--from", "2100-01-01T00:00:00Z"], []),
    ):
        found = [
            orjson.loads(line) for line in shell.does("tail", "find", *words, "--json").splitlines()
        ]
        assert [one["offset"] for one in found] == offsets, words
    pretty = shell.does("tail", "find", "--pretty").splitlines()
    assert pretty[1] == "  level: info"
    assert pretty[3:7] == ["{", '  "a": [', "    1,", "    2"]
    with shell.logd.client() as log:
        assert log.offset_for_timestamp("find", after) == 1


def test_a_hostile_record_does_not_reach_the_terminal(shell: Shell) -> None:
    shell.stream("evil")
    shell.does("publish", "evil.a", "--header", f"H={CLEAR.decode()}", given=CLEAR + b"\n")
    for words in (["tail"], ["tail", "--pretty"], ["tail", "--json"], ["fetch"]):
        said = shell.does(words[0], "evil", *words[1:])
        assert {sign for sign in said if not sign.isprintable()} == {"\n"}, words
    said = shell.does("query", "SELECT value, text, headers FROM evil", "--from", "earliest")
    assert {sign for sign in said if not sign.isprintable()} == {"\n"}


def test_sql_reads_streams(shell: Shell) -> None:
    shell.stream("sql")
    lines = b"".join(b'{"n":%d}\n' % number for number in range(3000))
    shell.does("publish", "sql.a", given=lines)
    text = (
        "SELECT count(*) AS n, sum((text->>'$.n')::int) AS total FROM sql WHERE log_offset >= 1000"
    )
    assert orjson.loads(shell.does("query", text, "--from", "earliest", "--json")) == {
        "n": 2000,
        "total": 3_999_000,
    }
    joined = "SELECT count(*) AS n FROM sql a JOIN sql b USING (log_offset)"
    assert orjson.loads(shell.does("query", joined, "--from", "earliest", "--json")) == {"n": 3000}
    recent = "SELECT count(*) AS n FROM sql WHERE timestamp > now() - INTERVAL 1 HOUR"
    assert shell.does("query", recent, "--from", "earliest").splitlines() == ["   n", "3000"]
    assert shell("query", "SELECT * FROM nothing").exit_code == 1


def test_a_range_becomes_a_file(shell: Shell, tmp_path: Path) -> None:
    shell.stream("exp")
    shell.does("publish", "exp.a", given=b"x\n" * 500)
    file = tmp_path / "exp.parquet"
    said = shell.does("export", "exp", "-o", str(file), "--from", "100", "--to", "400")
    assert said.startswith("300 records of exp/0 from offset 100 to 400")
    assert pq.read_table(file).column("offset").to_pylist() == list(range(100, 400))


def test_the_beginning_of_a_stream_is_purged(shell: Shell) -> None:
    shell.stream("old")
    shell.does("publish", "old.a", given=b"x\n" * 100)
    shell.does("cursors", "set", "billing", "old", "10")
    said = shell.does("streams", "purge", "old", "--before", "60", "--yes")
    assert said == "old/0 begins at offset 60; deleted: 60 records\n"
    done = shell("tail", "old", "--from", "10")
    assert (done.exit_code, "OUT_OF_RANGE" in done.stderr) == (1, True)
    with shell.logd.client() as log:
        assert log.offsets("old") == (60, 100)
        with pytest.raises(RefusedError, match="only what is committed goes"):
            log.purge("old", 101)
        cursor = log.cursor("billing", "old").get()
        assert cursor is not None
        assert cursor.offset == 10
    assert "40" in shell.does("cursors", "ls", "--stream", "old")
    shell.does("streams", "purge", "old", "--all", "--yes")
    directory = next((shell.logd.data_dir / "streams").glob("old-*")) / "0"
    wait_until(lambda: [path.stem.lstrip("0") for path in directory.glob("*.log")] == ["100"])
    shell.does("publish", "old.a", "new")
    assert shell.does("tail", "old", "--from", "earliest").startswith("100  ")


def test_gaps_of_a_logd_that_missed_nothing(shell: Shell) -> None:
    assert shell.does("gaps") == "no stream has missed messages since logd was started\n"
    assert shell.does("gaps", "--json") == ""


def test_following_ends_well_when_it_is_interrupted(shell: Shell) -> None:
    shell.stream("flow")
    command = [
        sys.executable,
        "-m",
        "penstock.logd",
        "tail",
        "flow",
        "--follow",
        "--from",
        "earliest",
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | shell.environment
    )
    assert process.stdout is not None
    try:
        shell.does("publish", "flow.a", "now")
        assert process.stdout.readline().endswith(b"now\n")
        process.send_signal(2)
        _, error = process.communicate(timeout=30)
        assert (process.returncode, error) == (0, b"")
    finally:
        process.kill()
