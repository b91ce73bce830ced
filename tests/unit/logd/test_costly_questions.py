"""Questions that are refused cost little, however long they are, and are taken down."""

import asyncio
import json
import tracemalloc
from pathlib import Path

import orjson
import pytest
import structlog

from penstock.logd.activity import ActivityLog
from penstock.logd.format.subjects import SubjectTrie
from penstock.logd.limits import ACTIVITY_EVENT_BYTES_MAX, REQUEST_SIZE_MAX
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.security.acl import Acl, Action, OnStream
from tests.support.guarded_api import guarded, rule, somebody
from tests.unit.logd.test_activity import ALICE, HandClock, Sink, written

ORDERS = StreamConfig(name="orders", subject="orders.>")
LONG = "a." * 30_000 + "a"


def test_what_can_be_no_name_is_not_remembered() -> None:
    acl = Acl([rule("allow alice read subject:a.>")])
    trie = SubjectTrie[int]()
    trie.insert("a.>", 1)
    tracemalloc.start()
    try:
        for number in range(100):
            long = f"{number}" * 50_000
            acl.decide("alice", frozenset(), Action.READ, OnStream(long))
            acl.decide("alice", frozenset(), Action.READ, OnStream("s", ("a.>",), long))
            assert trie.match(f"a.{long}") == (1,)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1_000_000


@pytest.mark.parametrize("subject", [LONG, "a.>.b", ""])
def test_what_is_no_filter_is_refused_before_rules_are_asked(tmp_path: Path, subject: str) -> None:
    async def main() -> None:
        async with guarded(tmp_path, ORDERS) as found:
            for stream in ("orders", "secret"):
                asked = {"stream": stream, "offset": 0, "subject": subject}
                assert await found.code(somebody("bob"), "fetch", **asked) == "BAD_SUBJECT"
            asked = {"action": "read", "resource": f"subject:{subject}"}
            assert await found.code(somebody("bob"), "test_acl", **asked) == "BAD_SUBJECT"

    asyncio.run(main())


async def test_a_request_that_cannot_be_written_down_is_taken_down_all_the_same() -> None:
    sink = Sink()
    log = ActivityLog("me", "boot", HandClock(), sink)
    deep = orjson.loads(b"[" * 1000 + b"]" * 1000)
    log.record("access.denied", ALICE, request={"x": deep}, result="PERMISSION_DENIED", count=1)
    await written(log)
    (event,) = sink.stored
    document = json.loads(event.value)
    assert (document["by"]["name"], document["facts"]["count"]) == ("alice", 1)


def test_a_long_request_is_not_logged_as_long_as_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = ActivityLog("me", "boot", HandClock(), None)
    before = structlog.get_config()
    structlog.configure(
        processors=[structlog.processors.JSONRenderer()],
        logger_factory=structlog.PrintLoggerFactory(),
    )
    try:
        log.record("access.denied", ALICE, request={"stream": "x" * REQUEST_SIZE_MAX}, count=1)
    finally:
        structlog.configure(**before)
    shown = capsys.readouterr().out
    assert "access.denied" in shown
    assert "left_out_bytes" in shown
    assert len(shown) < ACTIVITY_EVENT_BYTES_MAX
