"""The checkpoint, and what a start makes of it."""

import json
from pathlib import Path

import pytest

from penstock.collector.checkpoint.recovery import Sizes, open_data_directory
from penstock.collector.checkpoint.state import NewerStateError, State, read_state
from penstock.collector.delivery.ordered_queue import QueueKey
from penstock.collector.sources.files.identity import FileState, Mark

SPOOLED = QueueKey("spool", "app", "telemetry.logs.x")
FILED = QueueKey("file/1", "files", "telemetry.logs.y")
GONE = QueueKey("file/2", "files", "telemetry.logs.y")


def state(cursor: int, *, done: int = 1) -> State:
    file = FileState("files", 1, 2, 3, "00", 4, "/x.log", 5)
    return State(cursor=cursor, queues={SPOOLED: done, FILED: 7, GONE: 8}, files=[file])


def test_a_checkpoint_comes_back_as_it_was() -> None:
    saved = state(3)
    assert read_state(saved.as_document()) == saved


def test_a_mark_comes_back_and_earlier_versions_need_not_know_it() -> None:
    saved = state(3)
    saved.files[0].mark = Mark(9, 10, 5, 4, "00")
    document = json.loads(json.dumps(saved.as_document()))
    assert read_state(document) == saved
    assert [set(file) for file in document["files"]] == [set(saved.files[0].as_dict())]
    assert "mark" not in document["files"][0]
    del document["marks"]
    assert read_state(document).files[0].mark is None


def test_from_where_records_are_new_to_transforms_comes_back_and_may_lack() -> None:
    saved = state(3)
    saved.new_from = {"spool": {"": 4, "joined": 3}, "file/1": {"": 5}}
    document = json.loads(json.dumps(saved.as_document()))
    assert read_state(document) == saved
    del document["new_from"]
    assert read_state(document).new_from == {}


@pytest.mark.parametrize(("end", "foreign"), [(7, False), (6, True)])
def test_a_spool_that_ends_before_what_transforms_had_of_it_is_another_one(
    end: int, *, foreign: bool
) -> None:
    found = state(3)
    found.new_from = {"spool": {"": 7, "joined": 3}, "file/1": {"": 5}, "file/2": {"": 5}}
    assert found.fit_to_spool(0, end) is foreign
    left = {} if foreign else {"spool": {"": 7, "joined": 3}}
    assert found.new_from == left | {"file/1": {"": 5}}


@pytest.mark.parametrize(
    "marks",
    [None, [], {"1": None}, {"1": [9, 10]}, {"1": [9, 10, 5, 4, "00", "a later version's"]}],
)
def test_marks_of_another_form_are_none(marks: object) -> None:
    saved = state(3)
    saved.files[0].mark = Mark(9, 10, 5, 4, "00")
    document = saved.as_document() | {"marks": marks}
    assert read_state(document).files[0].mark is None


@pytest.mark.parametrize(
    ("cursor", "done", "start", "end", "foreign", "begins_at"),
    [
        (3, 1, 0, 9, False, 3),
        (3, 1, 5, 9, False, 5),
        (9, 1, 0, 9, False, 9),
        (9, 1, 0, 8, True, 0),
        (9, 1, 0, 0, True, 0),
        (0, (4 << 20) + 1, 0, 4, True, 0),
        (0, (4 << 20) + 1, 0, 5, False, 0),
    ],
    ids=["within", "below start", "at end", "old copy", "lost", "lost early", "partly done"],
)
def test_a_spool_that_is_not_the_checkpoints_begins_a_new_chain(
    cursor: int, done: int, start: int, end: int, *, foreign: bool, begins_at: int
) -> None:
    found = state(cursor, done=done)
    before = found.incarnation
    assert found.fit_to_spool(start, end) is foreign
    assert (found.incarnation != before) is foreign
    assert (SPOOLED in found.queues) is not foreign
    assert found.cursor == begins_at
    assert FILED in found.queues
    assert GONE not in found.queues, "a generation that is not read any more needs no queue"


def test_a_lost_spool_of_urgent_records_leaves_the_other_as_it_is() -> None:
    found = state(3)
    found.urgent_cursor = 7
    assert found.fit_to_spool(0, 9, urgent=(0, 2))
    assert (found.cursor, found.urgent_cursor) == (3, 0)
    assert SPOOLED in found.queues


@pytest.mark.parametrize(
    "wrong",
    [
        {"incarnation": 5},
        {"incarnation": "5"},
        {"cursor": "7"},
        {"cursor": -1},
        {"cursor": True},
        {"senders": {"6f": None}},
        {"senders": {"sender": 1}},
        {"lanes": [["spool", "s", "t"]]},
        {"lanes": {}},
        {"files": [5]},
        {"files": [{**state(3).files[0].as_dict(), "position": 1.5}]},
        {"files": [{**state(3).files[0].as_dict(), "more": 1}]},
        {"sources": [None]},
        {"sources": None},
        {"version": "1"},
        {"quarantine": 5},
        {"new_from": []},
        {"new_from": {"spool": []}},
        {"new_from": {"spool": {"joined": -1}}},
    ],
)
def test_what_is_no_checkpoint_is_refused_before_anything_is_done_by_it(
    wrong: dict[str, object],
) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_state(state(3).as_document() | wrong)


def test_a_later_version_is_told_from_damage() -> None:
    with pytest.raises(NewerStateError, match="version 2"):
        read_state(state(3).as_document() | {"version": 2})


def read_under(fingerprint: str) -> State:
    found = state(3)
    found.queues = {SPOOLED: (8 << 20) + 1, FILED: 7}
    found.routing = fingerprint
    found.new_from = {"spool": {"": 8}, "file/1": {"": 7}}
    return found


ENDS = {"spool": 9, "spool-urgent": 0}


@pytest.mark.parametrize(
    ("before", "after", "again"),
    [("a", "a", False), ("a", "b", True), ("", "a", True), ("", "", True), ("a", "", True)],
    ids=["the same", "another", "unknown", "varying", "varying now"],
)
def test_what_was_read_under_another_fingerprint_begins_a_new_chain(
    before: str, after: str, *, again: bool
) -> None:
    found = read_under(before)
    incarnation, quarantine = found.incarnation, found.quarantine
    assert found.fit_to_routing(after, ENDS) == (["spool", "file/1"] if again else [])
    assert (found.incarnation != incarnation) is again
    assert found.quarantine == quarantine, "what is kept there is known again"
    assert (SPOOLED in found.queues) is not again
    assert bool(found.new_from) is not again
    assert (FILED in found.queues) is not again
    assert found.routing == after
    assert (found.cursor, found.files[0].position) == (3, 5)


def test_a_spool_that_is_done_is_not_read_again_and_goes_on_under_any_fingerprint() -> None:
    found = read_under("a")
    found.cursor, found.files = 9, []
    before = found.incarnation
    assert found.fit_to_routing("b", ENDS) == []
    assert (found.incarnation, SPOOLED in found.queues) == (before, True)


@pytest.mark.parametrize(("more", "doubted"), [("", []), ("more\n", ["file/1"])])
def test_a_file_that_was_read_to_its_end_goes_on_under_any_fingerprint(
    tmp_path: Path, more: str, doubted: list[str]
) -> None:
    path = tmp_path / "x.log"
    path.write_text("done\n" + more)
    status = path.stat()
    file = FileState("files", 1, status.st_dev, status.st_ino, "00", 4, str(path), 5)
    found = open_data_directory(tmp_path / "data", Sizes(1 << 20, 1 << 20, 1 << 20), where="test")
    found.state = State(files=[file], queues={FILED: 5})
    before = found.state.incarnation
    found.fit_to_routing("")
    assert (found.state.incarnation != before) is bool(doubted)
    assert (FILED in found.state.queues) is not bool(doubted)
    found.lock.release()


def test_a_file_that_has_not_its_name_any_more_is_doubted(tmp_path: Path) -> None:
    found = open_data_directory(tmp_path / "data", Sizes(1 << 20, 1 << 20, 1 << 20), where="test")
    path = tmp_path / "x.log"
    path.write_text("other")
    for name in (str(path), "/no/such", "/a\0b"):
        found.state = State(
            files=[FileState("files", 1, 2, 3, "00", 4, name, 5)], queues={FILED: 5}
        )
        found.fit_to_routing("")
        assert not found.state.queues
    found.lock.release()


def test_a_checkpoint_of_an_earlier_version_knows_no_fingerprint() -> None:
    saved = read_under("a")
    document = json.loads(json.dumps(saved.as_document()))
    assert read_state(document) == saved
    for key in ("routing", "quarantine"):
        del document[key]
    found = read_state(document | {"rules": ["a", "a"], "since": {"spool": 4}})
    assert found.routing == ""
    assert found.quarantine == saved.incarnation
