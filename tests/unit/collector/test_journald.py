"""The systemd journal, by a stand-in for journalctl."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.collector.decode.journald import cursor_of, decode_entry
from penstock.collector.decode.units import decode_records
from penstock.collector.errors import UndecodableError
from penstock.collector.sources.journald import JournaldSettings, JournaldSource
from penstock.collector.spool.spool import Unit
from penstock.logd.storage import Checkpoint
from penstock.service import ConfigError
from penstock.specs.validate.validator import check_line
from penstock.specs.validate.verdict import Accepted
from tests.support.spool_writer import SpoolingIntake, spooling
from tests.support.waiting import wait_until_async

NOW = 1_700_000_000_000_000_000


def entry(number: int, **fields: Any) -> bytes:
    given = {"__CURSOR": f"c{number}", "MESSAGE": f"number {number}", **fields}
    return json.dumps(given).encode()


def decoded(fields: bytes, service: str = "from_unit") -> dict[str, Any]:
    line = decode_entry(fields, service, {"host.name": "own"}, NOW)
    assert isinstance(check_line(line), Accepted), (check_line(line), line)
    found: dict[str, Any] = json.loads(line)
    return found


def test_an_entry_becomes_a_log_record() -> None:
    found = decoded(
        entry(
            1, PRIORITY="3", _HOSTNAME="web", _SYSTEMD_UNIT="cron.service", _PID="7",
            SYSLOG_IDENTIFIER="CRON", __REALTIME_TIMESTAMP="1600000000000001", TAGS=["a", "b"],
        )
    )  # fmt: skip
    assert (found["body"], found["severity_number"]) == ("number 1", 17)
    assert found["time_unix_nano"] == 1_600_000_000_000_001_000
    assert found["resource"] == {"host.name": "web", "service.name": "cron.service"}
    assert found["attributes"] == {
        "journald.systemd_unit": "cron.service", "journald.pid": "7",
        "journald.syslog_identifier": "CRON", "journald.tags": ["a", "b"],
    }  # fmt: skip


def test_a_message_that_is_no_text_comes_as_its_bytes() -> None:
    found = decoded(entry(1, MESSAGE=[104, 105, 255]), "x")
    assert (found["body"], found["attributes"]["log.record.bytes_replaced"]) == ("hi\ufffd", True)
    assert decoded(entry(1, MESSAGE=None))["body"] == ""
    assert decoded(entry(1))["resource"]["service.name"] == "journald"


def test_a_sender_cannot_name_a_field_like_one_that_the_journal_found_out() -> None:
    for fields in (
        {"_UID": "1000", "UID": "0", "HOSTNAME": "bank", "_NEW": "a", "NEW": "b"},
        {"NEW": "b", "HOSTNAME": "bank", "UID": "0", "_NEW": "a", "_UID": "1000"},
    ):
        found = decoded(entry(1, SYSTEMD_UNIT="sshd.service", **fields))
        assert found["attributes"] == {
            "journald.uid": "1000", "journald.sent.uid": "0", "journald.sent.hostname": "bank",
            "journald.new": "a", "journald.sent.new": "b",
            "journald.sent.systemd_unit": "sshd.service",
        }  # fmt: skip
        assert found["resource"] == {"host.name": "own", "service.name": "journald"}


def test_fields_that_were_given_several_times_are_kept() -> None:
    units = ["a.service", "b.service"]
    found = decoded(entry(1, MESSAGE=["a", [104, 105]], PRIORITY=["3", "4"], _SYSTEMD_UNIT=units))
    assert (found["body"], found["severity_text"]) == ("a\nhi", "INFO")
    assert found["resource"]["service.name"] == "a.service"
    assert found["attributes"] == {
        "journald.systemd_unit": units, "journald.priority": ["3", "4"],
    }  # fmt: skip
    assert decoded(entry(1, PRIORITY="9"))["attributes"] == {"journald.priority": "9"}
    found = decoded(entry(1, SYSLOG_IDENTIFIER=[104, 105]))
    assert found["resource"]["service.name"] == "hi"


def test_a_priority_and_a_time_that_are_none_are_kept_and_counted() -> None:
    entries = [
        entry(1, PRIORITY="9", __REALTIME_TIMESTAMP="soon"),
        entry(2, PRIORITY=["3", "4"]),
        entry(3, PRIORITY="3", __REALTIME_TIMESTAMP="1600000000000001"),
    ]
    unit = Unit("j", "journal", b"\n".join(entries), 3, NOW, {"service": "x"})
    found = decode_records(unit, {})
    assert found.notes == {"levels_unknown": 2, "timestamps_unreadable": 1}
    record = json.loads(found.lines[0])
    assert (record["attributes"], record["time_unix_nano"]) == ({"journald.priority": "9"}, NOW)


def test_an_address_of_the_journal_that_is_not_known_is_counted() -> None:
    entries = entry(1, __SEQNUM="7", __SEQNUM_ID="x") + b"\n" + entry(2, __COLOUR="red")
    unit = Unit("j", "journal", entries, 2, NOW, {"service": "x"})
    assert decode_records(unit, {}).notes == {"fields_unknown": 1}


WILD = st.recursive(
    st.none() | st.text(max_size=4) | st.integers(-300, 300),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)
KEYS = st.sampled_from(
    ["MESSAGE", "PRIORITY", "_HOSTNAME", "_COMM", "COMM", "__REALTIME_TIMESTAMP", "X"]
)


@given(st.dictionaries(KEYS, WILD) | st.binary(max_size=20) | WILD)
def test_no_line_is_anything_but_a_record_or_refused(given: Any) -> None:
    line = given if isinstance(given, bytes) else json.dumps(given).encode()
    cursor_of(line)
    try:
        decode_entry(line, "from_unit", {}, NOW)
    except UndecodableError:
        return


JOURNALCTL = """#!/bin/sh
echo "$@" >> {directory}/asked
case "$*" in
*after-cursor=c2*) echo '{third}' ;;
*) echo '{first}'; echo '{second}'; echo odd; echo oops >&2 ;;
esac
exec sleep 1000
"""


@asynccontextmanager
async def following(
    directory: Path, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> AsyncIterator[SpoolingIntake]:
    program = directory / "journalctl"
    script = JOURNALCTL.format(
        directory=directory, **{n: entry(i).decode() for i, n in enumerate(
            ("first", "second", "third"), 1)},
    )  # fmt: skip
    program.write_text(script)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(directory), prepend=":")
    section = JournaldSettings.model_validate({"type": "journald", **options})
    async with spooling(directory, "journald", drop_newest=False) as spool_writer:
        source = JournaldSource(
            section, Checkpoint(directory / "cursor"), spool_writer=spool_writer
        )
        await source.start()
        running = asyncio.ensure_future(source.run())
        try:
            yield spool_writer
        finally:
            await source.stop()
            await running


def bodies(spool_writer: SpoolingIntake) -> list[str]:
    return [json.loads(line)["body"] for line in spool_writer.lines()]


async def test_the_journal_is_followed_from_the_saved_cursor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with following(tmp_path, monkeypatch, units=["a"]) as spool_writer:
        await wait_until_async(lambda: bodies(spool_writer) == ["number 1", "number 2"])
        await wait_until_async(lambda: spool_writer.account.received == 3)
        checkpoint = Checkpoint(tmp_path / "cursor")
        await wait_until_async(lambda: checkpoint.load() == {"cursor": "c2"})
    async with following(tmp_path, monkeypatch) as spool_writer:
        await wait_until_async(lambda: "number 3" in bodies(spool_writer))
    first, second = (tmp_path / "asked").read_text().splitlines()
    assert first.endswith("--follow --unit=a --no-tail")
    assert second.endswith("--no-tail --after-cursor=c2")


async def test_a_host_without_journalctl_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    async with spooling(tmp_path, "journald") as spool_writer:
        source = JournaldSource(
            JournaldSettings(type="journald"),
            Checkpoint(tmp_path / "cursor"),
            spool_writer=spool_writer,
        )
        with pytest.raises(ConfigError, match="journalctl"):
            await source.start()
