"""Frames that are damaged where they lie, or come so: passed over if that is accepted, and told."""

from dataclasses import replace

import pytest
from typing_extensions import override

from penstock.logd.client import Fetched
from penstock.logd.client.calls import Call
from penstock.logd.errors import CorruptError
from penstock.router.errors import DataLossError, LogUnavailableError
from penstock.router.read.offsets import Span
from tests.unit.router.scripted_log import ScriptedClient, compacted, offsets, reading
from tests.unit.router.sink_rows import TestClock


def test_a_reader_that_accepts_losses_goes_on_right_behind_a_damaged_frame() -> None:
    client = ScriptedClient([compacted(at, 4, [0, 1, 2, 3]) for at in (0, 4, 8)])
    client.damaged = (4, 8)
    log = reading(client)
    assert offsets(log.rows(Span("s", 0, 0, 12), fail_on_data_loss=False)) == [
        0,
        1,
        2,
        3,
        8,
        9,
        10,
        11,
    ]
    assert log.lost == 4


@pytest.mark.parametrize("subject", [None, "a.*"])
def test_a_frame_that_rotted_since_logd_looked_at_it_is_passed_over_and_told(
    subject: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    client = ScriptedClient([compacted(at, 4, [0, 1, 2, 3]) for at in (0, 4, 8)])
    client.rotted = (4, 8)
    rows = reading(client).rows(Span("s", 0, 0, 12), fail_on_data_loss=False, subject=subject)
    assert offsets(rows) == [0, 1, 2, 3, 8, 9, 10, 11]
    assert "going on at 8 without 4 offsets that are lost: s/0: offsets 4 to 7 are damaged" in (
        capsys.readouterr().err
    )


def test_what_is_missing_of_a_log_counts_as_lost() -> None:
    log = reading(ScriptedClient([compacted(at, 4, [0, 3]) for at in (0, 8)]))
    assert offsets(log.rows(Span("s", 0, 1, 10), fail_on_data_loss=False)) == [3, 8]
    assert log.lost == 4, "of the offsets that compaction has emptied none"


def test_a_frame_that_rotted_is_an_error_that_says_what_to_do() -> None:
    client = ScriptedClient([compacted(0, 4, [0, 1, 2, 3])])
    client.rotted = (0, 4)
    told = r"s/0: offsets 2 to 3 are damaged .*from a backup; or .*failOnDataLoss=false, in a job"
    with pytest.raises(DataLossError, match=told):
        list(reading(client).rows(Span("s", 0, 2, 4), fail_on_data_loss=True))


def test_a_frame_that_came_damaged_and_is_sound_where_it_lies_is_read() -> None:
    class Flaw(ScriptedClient):
        @override
        def ask(self, call: Call[Fetched]) -> Fetched:
            if "subject" not in call.request and call.request["offset"] == 4:
                self.asked.append(call.request)
                raise CorruptError("CRC of the body")
            found = super().ask(call)
            sole = found.frames[:1]
            return replace(found, frames=sole, next_offset=sole[0][0].next_offset)

    client = Flaw([compacted(at, 4, [0, 1, 2, 3]) for at in (0, 4, 8)])
    assert offsets(reading(client).rows(Span("s", 0, 0, 12), fail_on_data_loss=True)) == [
        *range(12)
    ]
    assert [it.get("subject") for it in client.asked] == [None, None, ">", None]
    assert client.asked[2]["bytes_max"] == 1


def test_what_comes_damaged_though_logd_has_looked_at_it_is_asked_for_again() -> None:
    class Worse(ScriptedClient):
        @override
        def ask(self, call: Call[Fetched]) -> Fetched:
            raise CorruptError("answer is not JSON")

    with pytest.raises(LogUnavailableError, match="answer is not JSON; gave up after 0 s"):
        list(reading(Worse([])).rows(Span("s", 0, 0, 4), fail_on_data_loss=False))


class Mending(TestClock):
    """Meanwhile the damage is mended."""

    def __init__(self, client: ScriptedClient) -> None:
        super().__init__()
        self.client = client
        self.sleeps = 0

    @override
    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.sleeps += 1
        if self.sleeps == 20:
            self.client.damaged = None


def test_what_one_replica_has_damaged_is_waited_for_where_there_are_others() -> None:
    client = ScriptedClient([compacted(at, 4, [0, 1, 2, 3]) for at in (0, 4, 8)])
    client.damaged, client.replicas = (4, 8), ("a", "b")
    log = reading(client, clock=Mending(client))
    assert offsets(log.rows(Span("s", 0, 0, 12), fail_on_data_loss=False)) == [*range(12)]
    assert log.lost == 0


def test_what_nobody_mends_is_waited_for_once() -> None:
    clock = TestClock()
    client = ScriptedClient([compacted(at, 4, [0, 1, 2, 3]) for at in (0, 4, 8)])
    client.damaged, client.replicas = (4, 8), ("a", "b")
    log, began_ns = reading(client, clock=clock), clock.now_ns
    for _ in range(2):
        rows = log.rows(Span("s", 0, 0, 12), fail_on_data_loss=False)
        assert offsets(rows) == [0, 1, 2, 3, 8, 9, 10, 11]
        assert 10e9 <= clock.now_ns - began_ns < 11e9
