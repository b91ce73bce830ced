"""The table of compressed files; the letters are those of `sources.files.compressed_identity`."""

from dataclasses import replace
from typing import Any

import pytest

from penstock.collector.sources.files.compressed_identity import End, Fit, Next, Seen, choose, fit
from penstock.collector.sources.files.identity import head_hash
from tests.support.gone_files import BODY, HEAD, MODIFIED_NS, gone

A, B = "/a.gz", "/b.gz"
SECOND = 10**9


def seen(head: bytes, length: int, end: End, **more: Any) -> Seen:
    """As a file that has the marked bytes, written a second later."""
    digests = {(0, 20): head_hash(BODY)} if length >= 20 else {}
    return Seen(
        head, length, end, **{"modified_ns": MODIFIED_NS + SECOND, "digests": digests, **more}
    )


@pytest.mark.parametrize(
    ("letter", "seen", "expected"),
    [
        ("b", seen(BODY, 30, End.WHOLE, modified_ns=MODIFIED_NS - 60 * SECOND), Fit.OTHER),
        ("b", seen(BODY, 30, End.WHOLE, modified_ns=0), Fit.OTHER),
        ("c", seen(HEAD[:5], 5, End.OPEN), Fit.UNDECIDED),
        ("d", seen(HEAD[:5], 5, End.BROKEN), Fit.UNKNOWN),
        ("e", seen(HEAD[:5], 5, End.WHOLE), Fit.OTHER),
        ("f", seen(b"other line\n", 11, End.OPEN), Fit.OTHER),
        ("g", seen(BODY, 30, End.WHOLE, digests={}), Fit.UNDECIDED),
        ("h", seen(BODY, 30, End.OPEN, digests={(0, 20): "other"}), Fit.OTHER),
        ("i", seen(HEAD + b"more", 100, End.OPEN), Fit.UNDECIDED),
        ("j", seen(HEAD, 100, End.BROKEN), Fit.BROKEN),
        ("k", seen(HEAD, 19, End.WHOLE), Fit.OTHER),
        ("l", seen(HEAD, 20, End.WHOLE), Fit.REST),
        # Rotation may keep the time from before its writer went elsewhere.
        ("l", seen(BODY, 30, End.WHOLE, modified_ns=MODIFIED_NS - 59 * SECOND), Fit.REST),
    ],
)
def test_each_row_of_the_table(letter: str, seen: Seen, expected: Fit) -> None:
    assert fit(gone(), seen) is expected


def test_row_a_nothing_marked() -> None:
    state = gone()
    state.mark = None
    assert fit(state, seen(BODY, 30, End.WHOLE)) is Fit.OTHER


def test_one_shorter_than_the_file_was_is_another() -> None:
    state = gone()
    assert state.mark is not None
    state.mark = replace(state.mark, size=31)
    assert fit(state, seen(BODY, 30, End.WHOLE)) is Fit.OTHER


UNCHANGED = {"modified_ns": MODIFIED_NS}
DENIED = {"unreadable": True}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({}, (Next.GIVE_UP, "")),
        ({A: seen(HEAD, 50, End.WHOLE), B: seen(b"", 0, End.OPEN)}, (Next.LOOK, B)),
        ({A: seen(HEAD, 50, End.WHOLE), B: seen(HEAD, 10, End.WHOLE)}, (Next.READ, A)),
        ({A: seen(HEAD, 50, End.WHOLE), B: seen(HEAD, 60, End.WHOLE)}, (Next.ALIKE, "")),
        ({A: seen(HEAD, 50, End.WHOLE), B: seen(HEAD, 20, End.WHOLE, **UNCHANGED)}, (Next.READ, B)),
        ({A: seen(HEAD, 50, End.WHOLE), B: seen(HEAD, 60, End.BROKEN)}, (Next.WAIT, "")),
        ({A: seen(HEAD, 50, End.WHOLE), B: seen(b"", 0, End.BROKEN, fresh=True)}, (Next.WAIT, "")),
        ({A: seen(HEAD, 50, End.WHOLE), B: seen(b"", 0, End.BROKEN)}, (Next.READ, A)),
        ({A: seen(HEAD, 10, End.WHOLE), B: seen(HEAD, 60, End.BROKEN)}, (Next.WAIT, "")),
        ({A: seen(b"", 0, End.BROKEN, fresh=True)}, (Next.WAIT, "")),
        ({A: seen(b"", 0, End.BROKEN)}, (Next.GIVE_UP, "")),
        ({A: seen(b"", 0, End.BROKEN, **DENIED)}, (Next.WAIT, "")),
        ({A: seen(b"", 0, End.BROKEN, modified_ns=0, **DENIED)}, (Next.GIVE_UP, "")),
        ({A: seen(HEAD, 50, End.WHOLE), B: seen(b"", 0, End.BROKEN, **DENIED)}, (Next.READ, A)),
        (
            {
                A: seen(HEAD, 50, End.WHOLE),
                B: seen(HEAD, 60, End.WHOLE),
                "/c.gz": seen(b"", 0, End.BROKEN, **DENIED),
            },
            (Next.WAIT, ""),
        ),
    ],
)
def test_what_is_done_next(found: dict[str, Seen], expected: tuple[Next, str]) -> None:
    state = gone()
    fits = {path: fit(state, one) for path, one in found.items()}
    assert choose(state, found, fits) == expected


@pytest.mark.parametrize(
    ("modified_ns", "unchanged"),
    [
        (MODIFIED_NS, True),
        (MODIFIED_NS - MODIFIED_NS % SECOND, True),  # tar
        (MODIFIED_NS - MODIFIED_NS % 1_000_000, True),
        (MODIFIED_NS - 120, True),  # a number with a fraction, as Python has times
        (MODIFIED_NS - SECOND, False),
        (MODIFIED_NS + 2_000_000, False),
    ],
)
def test_a_copy_keeps_the_time_as_precisely_as_its_tool_does(
    modified_ns: int, unchanged: bool
) -> None:
    mark = gone().mark
    assert mark is not None
    assert mark.is_unchanged(mark.size, modified_ns) is unchanged
    assert not mark.is_unchanged(mark.size + 1, modified_ns)
