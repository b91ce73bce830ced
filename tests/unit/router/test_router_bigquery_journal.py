"""What the BigQuery sink takes for there already after a crash, and what it does not."""

from pathlib import Path

import pytest

from penstock.router.sinks.bigquery.journal import Journal, Sent
from penstock.service import ConfigError

PLACE = "logs.5f2c19aa-0"
FIRST = tuple((PLACE, offset) for offset in (1, 2, 3, 7))
SECOND = ((PLACE, 8), ("traces.0-1", 8))


def journal(directory: Path) -> Journal:
    made = Journal(directory / "journal.json")
    made.read()
    return made


def killed(directory: Path) -> None:
    """After one append that was taken, and one that nobody knows of."""
    before = journal(directory)
    before.begin((*FIRST, *SECOND))
    before.start("s0")
    before.send(Sent(0, FIRST))
    before.taken()
    before.send(Sent(4, SECOND))


def test_a_new_sink_knows_nothing(tmp_path: Path) -> None:
    made = journal(tmp_path)
    assert (made.stream, made.rows, made.sent, made.is_left) == (None, 0, None, False)


@pytest.mark.parametrize(
    ("count", "there"), [(4, FIRST), (6, (*FIRST, *SECOND)), (None, FIRST)], ids=str
)
def test_the_streams_length_says_whether_the_last_append_is_there(
    tmp_path: Path, count: int | None, there: tuple[tuple[str, int], ...]
) -> None:
    killed(tmp_path)
    made = journal(tmp_path)
    assert (made.stream, made.rows, made.is_left) == ("s0", 4, True)
    made.begin((*FIRST, *SECOND))
    made.settle(count)
    assert tuple(it for it in (*FIRST, *SECOND) if made.has(*it)) == there
    assert (made.stream, made.sent, made.is_left) == (None, None, False)


def test_what_was_refused_is_not_there(tmp_path: Path) -> None:
    made = journal(tmp_path)
    made.start("s0")
    made.send(Sent(0, FIRST))
    made.refused()
    assert not made.has(PLACE, 1)
    made.send(Sent(0, FIRST[1:]))
    made.taken()
    assert [made.has(*it) for it in FIRST] == [False, True, True, True]


def test_another_batch_has_nothing_of_the_one_before(tmp_path: Path) -> None:
    killed(tmp_path)
    made = journal(tmp_path)
    made.begin([(PLACE, 9), ("traces.0-1", 9)])
    made.settle(6)
    assert not made.has(PLACE, 9)
    assert not made.has(PLACE, 1)


def test_a_file_that_is_damaged_is_named(tmp_path: Path) -> None:
    for text in ("{", "[]", '{"stream": null}', '{"stream": 1, "rows": 2, "sent": 3, "done": {}}'):
        (tmp_path / "journal.json").write_text(text)
        with pytest.raises(ConfigError, match=r"journal\.json is damaged"):
            journal(tmp_path)
