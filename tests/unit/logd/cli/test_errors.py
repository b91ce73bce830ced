"""What commands say, and end with, when they are not given what they need."""

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from typing_extensions import override

from penstock.logd.api.protocol import encode_response
from penstock.logd.cli import cli
from penstock.logd.cli.server import FIXES, POSITION, Clients, advice
from penstock.logd.client import LogClient, StreamInfo
from penstock.logd.config import LogdConfig
from penstock.logd.errors import (
    CorruptError,
    LogdError,
    NoAnswerError,
    RefusedError,
    UnavailableError,
    UnsettledError,
)
from penstock.logd.format.acks import Nack
from penstock.logd.offline.backup import MANIFEST, BackupPartition, Manifest
from penstock.service import ExitCode
from tests.support.cli_commands import all_commands
from tests.support.processes import free_port

USAGE = [
    "tail logs --from yesterday",
    "tail logs --from 2026-13-01",
    "tail logs --from 99999999999999d",
    "tail logs --header =x",
    "tail logs --pretty --json",
    "fetch logs --json --format arrow",
    "dump . --json --format text",
    "publish t.a --tombstone",
    "publish t.a x --tombstone --key k",
    "publish t.a --tombstone --key k --id 1",
    "publish t.a --id 7",
    "publish t.a x y --id 7",
    "publish t.a x --header novalue",
    "publish t.a --file no-such-file",
    "publish t.a x --nats-key only.pem",
    "publish t.a x --retry-s -1",
    "streams purge logs",
    "streams purge logs --all --before 3",
    "nonsense",
    "streams nonsense",
    f"tail logs --server {'a' * 300}:1",
    "",
]


@pytest.mark.parametrize("words", USAGE)
def test_wrong_usage_ends_with_64(words: str) -> None:
    done = CliRunner().invoke(cli, words.split())
    assert done.exit_code == 64, done.output
    assert done.stdout == ""
    assert "Usage:" in done.stderr


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (UnsettledError("nobody leads it now"), "ask again: a leader is being found"),
        (
            NoAnswerError("a:1 cannot be reached", cause="unreachable"),
            "start logd, or name its fetch address",
        ),
        (UnavailableError("a disk is full"), "see the nodes, penstock logd cluster info"),
    ],
)
def test_what_to_do_depends_on_whether_nodes_have_answered(
    tmp_path: Path, error: Exception, said: str
) -> None:
    """As when a leader moves while an export reads."""

    class Failing(LogClient):
        @override
        def stream(self, name: str) -> StreamInfo:
            raise error

    output = tmp_path / "x.parquet"
    done = CliRunner().invoke(cli, ["export", "logs", "-o", str(output)], obj=Clients(log=Failing))
    assert (done.exit_code, done.stdout, output.exists()) == (ExitCode.UNAVAILABLE, "", False)
    assert said in done.stderr


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RefusedError("CORRUPT", "x", offset=1, next_offset=2), "--skip-damaged"),
        (RefusedError("STORAGE_FAILED", "x"), "penstock logd streams open"),
        (RefusedError("UNAVAILABLE", "x"), "then ask again"),
        (RefusedError("UNAVAILABLE", "x", cause="WRONG_KEY"), "master key"),
        (RefusedError("UNAVAILABLE", "x", cause="CORRUPT"), "penstock logd check"),
        (RefusedError("UNAVAILABLE", "x", cause="LATER_CODE"), "penstock logd streams open"),
        (RefusedError("UNAUTHENTICATED", "x", reason="nobody"), "show who you are"),
        (RefusedError("UNAUTHENTICATED", "x", reason="not_taken"), "as `auth` in logd"),
        (RefusedError("UNAUTHENTICATED", "x", reason="expired"), "get a new one"),
        (RefusedError("UNAUTHENTICATED", "x", reason="unknown_key"), "penstock logd keys new"),
        (RefusedError("READ_ONLY", "x"), "end its restore"),
        (RefusedError("STREAM_DIFFERS", "x"), "another name"),
        (RefusedError("LATER_CODE", "x"), "see what the message names"),
        (NoAnswerError("x", cause="closed"), "if it has TLS: --tls"),
        (NoAnswerError("x", cause="no_tls"), "leave out --tls"),
        (NoAnswerError("x", cause="certificate"), "--tls-ca FILE"),
        (NoAnswerError("x", cause="client_certificate"), "--cert FILE"),
        (NoAnswerError("x", cause="silent"), "see the log of logd"),
        (NoAnswerError("x", cause="unreachable"), "start logd"),
        (UnsettledError("x"), "a leader is being found"),
        (CorruptError("x"), "--server is logd's fetch address"),
    ],
)  # fmt: skip
def test_advice_fits_the_situation(error: LogdError, said: str) -> None:
    assert said in advice(error)


def test_every_refusal_that_a_command_can_get_has_advice_of_its_own() -> None:
    """A new code is given a fix, or is named here as one that no command gets from logd."""
    root = Path(__file__).resolve().parents[4] / "logd" / "penstock" / "logd"
    codes = {nack.name for nack in Nack}
    for path in root.rglob("*.py"):
        codes |= set(re.findall(r'RefusedError\(\s*"([A-Z_]+)"', path.read_text()))
    codes = {code for code in codes if not code.endswith("_")}  # the beginning of several
    new = codes - set(FIXES) - BETWEEN_NODES
    assert new == set(), "give them a fix in cli/advice.py, or name them in BETWEEN_NODES"
    assert BETWEEN_NODES - codes == set(), "nobody refuses with these any more"


def test_advice_names_keys_that_the_configuration_has() -> None:
    named = {
        key for fix in FIXES.values() for key in re.findall(r"raise (\w+) in logd's config", fix)
    }
    assert named
    assert named <= set(LogdConfig.model_fields)


BETWEEN_NODES = {
    "AMBIGUOUS_STREAM", "BAD_HELLO", "BAD_INCARNATION", "BAD_ISR", "CLUSTERED",
    "COMMAND_TOO_LARGE", "EXISTS", "LEADER_NOT_IN_ISR", "LOCKED", "LOST", "NOT_A_DATA_DIR",
    "NOT_CONTROLLER", "NOT_RELEASED", "NOT_VOTER", "NOT_YET", "NO_STATE", "OTHER_MEMBER",
    "SESSION_BROKEN", "STALE_EPOCH", "UNKNOWN_SNAPSHOT", "WRONG_CERTIFICATE", "WRONG_CLUSTER",
    "WRONG_NODE",
}  # fmt: skip
"""Between nodes, at the start of a daemon, or of the commands for a stopped logd's data."""


def test_a_server_that_answers_with_an_alert_of_tls_is_told_of_tls() -> None:
    with answering(b"\x15\x03\x03\x00\x02\x02\x46") as server:
        done = CliRunner().invoke(cli, ["streams", "ls", "--server", server])
    assert done.exit_code == ExitCode.UNAVAILABLE
    assert "if it has TLS: --tls, or --tls-ca FILE" in done.stderr


def _asking(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The commands that ask a running logd, with what they need."""
    for name, command in all_commands(group):
        if isinstance(command, click.Group):
            yield from _asking(command, (*path, name))
        elif name == "publish":
            continue  # it goes to NATS, whether logd answers or not
        elif any(option.name == "server" for option in command.params):
            yield (*path, name, *_needed(command))


def _needed(command: click.Command) -> Iterator[str]:
    values: dict[str, str] = {
        "offset": "3",
        "subject": "t.a",
        "query": "select * from logs",
        "output": "no/x.arrow",
        "actions": "read",
    }
    for parameter in command.params:
        if isinstance(parameter.type, click.Choice) and parameter.required:
            yield str(parameter.type.choices[0])
        elif isinstance(parameter, click.Argument) and parameter.required:
            yield values.get(parameter.name or "", "logs")
        elif isinstance(parameter, click.Option) and parameter.required:
            yield from (parameter.opts[0], values.get(parameter.name or "", "t.a"))
    asked = {parameter.name for parameter in command.params}
    names: dict[str, tuple[str, ...]] = {
        "alter": ("--min-isr", "1"),
        "move": ("--cancel",),
        "remove": ("--yes",),
        "observers": ("--none",),
        "purge": ("--all",),
        "wait": ("--seconds", "0"),
        "set": ("--requests-per-s", "5") if "principal" in asked else (),
    }
    yield from names.get(command.name or "", ())


@pytest.mark.parametrize("words", sorted(_asking(cli)), ids=" ".join)
def test_without_a_logd_every_command_ends_with_69_and_says_what_to_do(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs").mkdir()  # a backup that is sound, for `restore`
    manifest = Manifest("1", "", "logs", "t.>", "x", {}, [BackupPartition(0, 0)])
    manifest.save(tmp_path / "logs" / MANIFEST)
    nobody = ["--server", f"127.0.0.1:{free_port()}"]
    for more in ([], ["--json"])[: 1 + (words[:2] != ("acl", "nats"))]:
        done = CliRunner().invoke(cli, [*words, *nobody, *more])
        assert (done.exit_code, done.stdout) == (69, ""), done.output
        assert "cannot be reached" in done.stderr
        assert "fix: start logd, or name its fetch address with --server" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("cursors", "set", "c", "logs", "9" * 30),
        ("match", "\udcff"),
        ("streams", "create", "logs", "--subject", "t.>", "--partitions", "9" * 30),
    ],
    ids=lambda words: words[-1],
)
def test_what_no_request_can_say_is_refused(words: tuple[str, ...]) -> None:
    with answering(encode_response({"id": 1, "streams": [], "cluster": None, "nodes": []})) as it:
        done = CliRunner().invoke(cli, [*words, "--server", it])
    assert done.exit_code == 1, done.output
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        encode_response({"id": 1}),
        encode_response({"id": 1, "streams": 3, "nodes": [7], "version": None}),
        b"\xff" * 100,
    ],
)
@pytest.mark.parametrize(
    "words",
    ["tail logs", "streams ls", "cluster info", "gaps", "match x", "acl ls", "cursors ls"],
)
def test_an_answer_that_logd_would_not_give_is_told_in_words(words: str, reply: bytes) -> None:
    with answering(reply) as server:
        done = CliRunner().invoke(cli, [*words.split(), "--server", server])
    assert done.exit_code == ExitCode.DATA, done.output
    assert "fix: see that --server is logd's fetch address" in done.stderr


@contextmanager
def answering(reply: bytes) -> Iterator[str]:
    """Something that is not logd: each connection gets the same bytes."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    with connection, suppress(OSError):
                        connection.recv(65536)
                        connection.sendall(reply)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_without_nats_publishing_ends_with_69() -> None:
    url = f"nats://127.0.0.1:{free_port()}"
    done = CliRunner().invoke(cli, ["publish", "t.a", "x", "--nats", url, "--connect-s", "0.2"])
    assert (done.exit_code, done.stdout) == (69, "")
    assert url in done.stderr
    assert "fix: " in done.stderr


def test_an_address_that_is_none_is_wrong_usage() -> None:
    assert CliRunner().invoke(cli, ["tail", "logs", "--server", "nowhere"]).exit_code == 64


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("0", 0),
        ("9223372036854775807", 2**63 - 1),
        ("earliest", "earliest"),
        ("2026-01-31T03:00:00Z", "2026-01-31 03:00:00+00:00"),
        ("2026-01-31T03:00", "2026-01-31 03:00:00+00:00"),
        ("2026-01-31 03:00+02:00", "2026-01-31 03:00:00+02:00"),
        ("2026-01-31", "2026-01-31 00:00:00+00:00"),
    ],
)
def test_positions_are_offsets_ends_and_times(given: str, meant: Any) -> None:
    assert str(POSITION.convert(given, None, None)) == str(meant)


def test_a_position_may_be_so_long_ago() -> None:
    later, earlier = (POSITION.convert(ago, None, None) for ago in ("15m", "2h"))
    assert 6000 < (later - earlier).total_seconds() < 6400
    assert later.tzinfo is not None


def test_the_table_of_exit_codes_is_of_codes_there_are() -> None:
    text = (Path(__file__).resolve().parents[4] / "docs" / "COMMANDS.md").read_text()
    table = text.partition("| exit code |")[2].partition("\n\n")[0]
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    assert codes == set(ExitCode) - {ExitCode.CONFIG}  # that one is a daemon's
