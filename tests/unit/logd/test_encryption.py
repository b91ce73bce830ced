"""Master keys, and streams that want them."""

import asyncio
import base64
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from click.testing import CliRunner
from pydantic import ValidationError

from penstock.logd.cli import cli
from penstock.logd.cluster.replication.sender import read_frames
from penstock.logd.encryption.master_keys import EncryptionSection, KeySource, MasterKeys
from penstock.logd.errors import RefusedError
from penstock.logd.format.frame import parse_frames
from penstock.logd.intake.turn import Message
from penstock.logd.metadata.streams import Metadata, StreamConfig
from penstock.logd.partition.partition import OfflinePartition
from penstock.logd.storage.segment import segment_path
from tests.support.encryption import key_file, master_keys
from tests.support.one_node import OneNode, one_node
from tests.support.partition_context import make_context

SECRET = b"nobody is to read this from a disk"
LOGS = StreamConfig(name="logs", subject="t.>", encryption="aes-256-gcm", dedup_window_s=100)
PLAIN = StreamConfig(name="plain", subject="p.>")


def node_with(
    directory: Path, masters: MasterKeys, *streams: StreamConfig
) -> AbstractAsyncContextManager[OneNode]:
    return one_node(directory, *streams, context=make_context(masters=masters))


async def store(node: OneNode, name: str, *values: bytes) -> None:
    for value in values:
        node.partition(name).take([Message(b"t.a", b"", b"", value)])
        await node.partition(name).wait_drained()


def values(node: OneNode, name: str) -> list[bytes]:
    found = read_frames(node.partition(name).log, 0, bytes_max=1 << 20, upto=1 << 40)
    assert SECRET in found.data
    return [body for _, body in parse_frames(found.data)]


def command(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    return done.exit_code, done.stdout_bytes.decode() + done.stderr


@pytest.mark.parametrize(
    "text", ["00" * 32, "aB" * 32 + "\n", base64.b64encode(bytes(32)).decode() + "\r\n"]
)
def test_a_master_key_is_hexadecimal_digits_or_base64(tmp_path: Path, text: str) -> None:
    source = KeySource(file=key_file(tmp_path, "k", content=text))
    assert len(MasterKeys({"k": source}, "k").key("k")) == 32


@pytest.mark.parametrize("text", ["00" * 31, "secretsecret", "zz" * 32, "00" * 5000, "é" * 64])
def test_what_is_no_key_is_refused_and_not_told(tmp_path: Path, text: str) -> None:
    source = KeySource(file=key_file(tmp_path, "k", content=text))
    with pytest.raises(RefusedError, match="does not hold 32 bytes") as refused:
        MasterKeys({"k": source}, "k").key("k")
    assert refused.value.code == "KEY_UNAVAILABLE"
    assert text not in str(refused.value)


def test_a_key_that_cannot_be_had_says_where_it_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = MasterKeys({"f": KeySource(file=tmp_path / "no"), "e": KeySource(env="NO_SUCH")}, "f")
    monkeypatch.delenv("NO_SUCH", raising=False)
    for name, where in (("f", str(tmp_path / "no")), ("e", "NO_SUCH"), ("g", "e, f")):
        with pytest.raises(RefusedError, match=where) as refused:
            keys.key(name)
        assert (refused.value.code, refused.value.detail["key"]) == ("KEY_UNAVAILABLE", name)
    monkeypatch.setenv("NO_SUCH", "11" * 32)
    assert keys.key("e") == b"\x11" * 32


@pytest.mark.parametrize(
    "section",
    [
        {"active": "a", "keys": {"b": {"env": "B"}}},
        {"active": "a", "keys": {"a": {}}},
        {"active": "a", "keys": {"a": {"env": "A", "file": "f"}}},
        {"active": "a b", "keys": {"a b": {"env": "A"}}},
        {"active": "a", "keys": {}},
    ],
)
def test_a_section_that_names_no_key_is_refused(section: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        EncryptionSection.model_validate(section)


def test_encryption_cannot_be_changed() -> None:
    metadata = Metadata()
    metadata.create(PLAIN, "1")
    with pytest.raises(RefusedError, match="encryption 'none' cannot be changed") as refused:
        metadata.alter(StreamConfig(name="plain", subject="p.>", encryption="aes-256-gcm"))
    assert refused.value.code == "STREAM_DIFFERS"


async def test_records_outlive_restarts_and_a_new_master_key(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for number, names in enumerate((("old",), ("old",), ("new", "old"), ("new",))):
        async with node_with(data, master_keys(tmp_path, *names), LOGS) as node:
            await store(node, "logs", SECRET + b"%d" % number)
            found = values(node, "logs")
            assert len(found) == number + 1
            for at, body in enumerate(found):
                assert SECRET + b"%d" % at in body
    for path in await asyncio.to_thread(lambda: [p for p in data.rglob("*") if p.is_file()]):
        assert SECRET not in path.read_bytes(), path


async def test_a_stream_whose_key_is_not_to_be_had_keeps_no_other_one_from_it(
    tmp_path: Path,
) -> None:
    masters = master_keys(tmp_path)
    async with node_with(tmp_path, masters, LOGS, PLAIN) as node:
        await store(node, "logs", SECRET)
    file = key_file(tmp_path, "now")
    content = file.read_text()
    for wrong, code in (("", "KEY_UNAVAILABLE"), ("11" * 32, "WRONG_KEY")):
        file.write_text(wrong)
        async with node_with(tmp_path, masters) as node:
            await store(node, "plain", b"x")
            (offline_partition,) = node.engine.offline_partition()
            assert isinstance(offline_partition, OfflinePartition)
            assert "master key 'now'" in offline_partition.reason
            with pytest.raises(RefusedError) as refused:
                await node.engine.streams.open("logs")
            assert refused.value.code == code
            file.write_text(content)
            await node.engine.streams.open("logs")
            assert len(values(node, "logs")) == 1


async def test_a_stream_is_not_made_where_it_cannot_be_encrypted(tmp_path: Path) -> None:
    async with node_with(tmp_path, MasterKeys({})) as node:
        with pytest.raises(RefusedError) as refused:
            await node.create(LOGS)
        assert refused.value.code == "ENCRYPTION_UNAVAILABLE"
        assert node.engine.streams.describe() == []
    with pytest.raises(RefusedError):
        async with node_with(tmp_path, MasterKeys({"k": KeySource(env="NO_SUCH")}, "k"), LOGS):
            pass


async def test_message_ids_are_remembered_over_a_restart_and_not_readable(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    config = StreamConfig(name="logs", subject="t.>", encryption="aes-256-gcm", compact=True)
    headers = b"NATS/1.0\r\nNats-Msg-Id: " + SECRET + b"\r\n\r\n"
    for _ in range(2):
        async with node_with(data, master_keys(tmp_path), config) as node:
            node.partition("logs").take([Message(b"t.a", b"", headers, b"x")])
            await node.partition("logs").wait_drained()
            assert node.partition("logs").log.end_offset == 1
    memory = next(data.glob("streams/logs-*/0/producers"))
    assert memory.read_bytes().startswith(b"PNSE")


async def test_check_and_dump_work_with_the_keys_and_say_what_is_missing(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    async with node_with(data, master_keys(tmp_path), LOGS) as node:
        await store(node, "logs", SECRET, SECRET, SECRET)
    key = f"now={key_file(tmp_path, 'now')}"
    directory = next(data.glob("streams/logs-*/0"))

    code, out = command("check", data)
    assert (code, "wants the master key now" in out) == (0, True)
    assert command("check", data, "--key", key) == (0, out.split("note")[0])
    code, out = command("check", data, "--key", f"now={key_file(tmp_path, 'other')}")
    assert (code, "not the one" in out) == (0, True)
    code, out = command("repair", data)
    assert (code, "nothing to repair" in out) == (0, True)
    code, out = command("dump", data, "logs", "--format", "ndjson")
    assert (code, "--key NAME=FILE" in out) == (1, True)
    code, out = command("dump", data, "logs", "--format", "ndjson", "--key", key)
    assert (code, SECRET.decode() in out) == (0, True)
    assert command("dump", data, "logs", "--key", "now")[0] == 64

    log = segment_path(directory, 0)
    content = bytearray(log.read_bytes())
    content[200] ^= 1
    log.write_bytes(content)
    for keys in ((), ("--key", key)):
        assert command("check", data, *keys)[0] == 65
    log.write_bytes(bytes(content[:200]) + bytes([content[200] ^ 1]) + bytes(content[201:]))
    for name in ("keys", "keys.copy"):
        (directory / name).write_bytes(b"rubbish")
    code, out = command("check", data, "--key", key)
    assert (code, "none of its records" in out) == (65, True)
    for name in ("keys", "keys.copy"):
        (directory / name).unlink()
    code, out = command("check", data, "--key", key)
    assert (code, out.count("keys"), "offsets 0 to 2 cannot be read" in out) == (65, 4, True)
