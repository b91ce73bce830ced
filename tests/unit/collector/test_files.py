"""The table of file identity; the letters are those of `sources.files.identity`."""

from dataclasses import replace

import pytest

from penstock.collector.sources.files.identity import (
    FileState,
    Found,
    Generations,
    Mark,
    Verdict,
    head_hash,
    written,
)

FILE = Found(device=1, inode=2, size=100, head=b"first line\n" + b"x" * 89)
MARKED = b"what was read last\n"


def known(generations: Generations, *, position: int = 100) -> Generations:
    state = generations.begin("s", FILE, "/x.log")
    state.position = position
    end = position + len(MARKED)  # as of a file whose head is shorter than what is compared of it
    state.mark = Mark(end, 5, end, len(MARKED), head_hash(MARKED))
    return Generations(following=generations.following, known=[state])


@pytest.mark.parametrize(
    ("letter", "found", "verdict"),
    [
        ("a", Found(9, 9, 0, b""), Verdict.NOT_YET),
        ("b", Found(9, 9, 5, b"other"), Verdict.NEW),
        ("c", replace(FILE, size=50), Verdict.TRUNCATED),
        ("d", replace(FILE, size=200, head=b"other" + b"x" * 95), Verdict.REPLACED),
        ("e", replace(FILE, size=200, marked=b"other than was read\n"), Verdict.REPLACED),
        ("e", replace(FILE, size=200, marked=MARKED[:-1]), Verdict.REPLACED),
        ("f", replace(FILE, size=200, head=FILE.head + b"y" * 100), Verdict.SAME),
        ("f", replace(FILE, size=200, marked=MARKED), Verdict.SAME),
        ("f", replace(FILE, size=200, marked=bytes(len(MARKED))), Verdict.SAME),
        ("f", replace(FILE, size=200, marked=b"oth" + bytes(16)), Verdict.SAME),
    ],
)
def test_each_row_of_the_table(letter: str, found: Found, verdict: Verdict) -> None:
    got, state = known(Generations()).recognise("s", found)
    assert got is verdict
    assert (state is not None) == (verdict is Verdict.SAME)


def test_a_file_that_ends_before_its_marked_bytes_is_truncated_wherever_reading_begins() -> None:
    """Transforms may hold the position back to before these, and the head has not changed."""
    generations = known(Generations())
    [state] = generations.known.values()
    state.position = 0
    short = replace(FILE, size=100 + len(MARKED) - 1, marked=b"")
    assert generations.recognise("s", short) == (Verdict.TRUNCATED, None)


def test_a_generation_number_is_never_given_twice() -> None:
    generations = known(Generations())
    assert generations.following == 2
    assert generations.begin("s", FILE, "/x.log").generation == 2


def test_a_file_is_known_by_more_of_its_head_as_it_grows() -> None:
    state = Generations().begin("s", Found(1, 2, 3, b"abc"), "/x")
    state.learn(b"abcdef")
    assert state.head_length == 6
    assert state.classify(Found(1, 2, 9, b"abcXefghi"), read=3, marked="") is Verdict.REPLACED
    assert FileState(**state.as_dict()) == state


def test_what_is_marked_is_looked_at_where_the_head_does_not_have_it() -> None:
    generations = known(Generations())
    assert generations.marked("s", FILE) == (100, 100 + len(MARKED))
    assert generations.marked("s", replace(FILE, inode=3)) == (0, 0)
    [state] = generations.known.values()
    state.mark = None  # of a checkpoint from before there were marks
    assert generations.marked("s", FILE) == (0, 0)
    state.mark = Mark(100, 5, 100, 50, "")
    assert generations.marked("s", FILE) == (0, 0)


def test_zeros_and_what_is_before_them_are_not_marked() -> None:
    assert written(70, b"a\n\0\0") == (70, b"a\n")
    assert written(70, b"a\0b\n\0\0") == (72, b"b\n")
    assert written(70, bytes(9))[1] == b""


def test_equal_heads_in_two_files_are_two_files() -> None:
    generations = known(Generations())
    verdict, _ = generations.recognise("s", replace(FILE, inode=3))
    assert verdict is Verdict.NEW


def test_a_file_whose_inode_is_anothers_is_lost_and_not_forgotten() -> None:
    generations = known(Generations(), position=80)
    other = replace(FILE, head=b"other" + b"x" * 95)
    assert generations.recognise("s", other) == (Verdict.REPLACED, None)
    assert [(state.generation, state.position) for state in generations.lost] == [(1, 80)]
    begun = generations.begin("s", other, "/x.log")
    again = Generations(following=3, known=[*generations.waiting, begun])
    assert [state.generation for state in again.lost] == [1]
    assert again.recognise("s", other) == (Verdict.SAME, begun)
