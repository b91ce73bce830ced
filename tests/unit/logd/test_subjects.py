import random
import re
from contextlib import nullcontext as does_not_raise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.logd.errors import RefusedError
from penstock.logd.format.subjects import (
    RESERVED_PREFIXES,
    SubjectTrie,
    begins_with_wildcard,
    check_filter,
    check_stream_subject,
    is_reserved,
    matches,
)

TOKENS = st.sampled_from(["a", "b", "c"])
SUBJECTS = st.lists(TOKENS, min_size=1, max_size=4).map(".".join)
FILTERS = st.builds(
    lambda tokens, rest: ".".join([*tokens, *rest]),
    st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=3),
    st.sampled_from([[], [">"]]),
)


def by_regex(subject_filter: str, subject: str) -> bool:
    """The dumb version: a filter as a regular expression."""
    pattern = re.escape(subject_filter).replace(r"\*", "[^.]+").replace(">", ".+")
    return re.fullmatch(pattern, subject) is not None


@given(FILTERS, SUBJECTS)
def test_matches_agrees_with_a_regular_expression(subject_filter: str, subject: str) -> None:
    assert matches(subject_filter, subject) == by_regex(subject_filter, subject)


@given(st.lists(FILTERS, max_size=8), st.lists(SUBJECTS, max_size=8), st.randoms())
def test_trie_agrees_with_brute_force_through_inserts_and_removals(
    filters: list[str], subjects: list[str], rng: random.Random
) -> None:
    trie: SubjectTrie[int] = SubjectTrie()
    held: dict[int, str] = {}
    for number, subject_filter in enumerate(filters):
        trie.insert(subject_filter, number)
        held[number] = subject_filter
        if rng.random() < 0.3:
            gone = rng.choice(list(held))
            trie.remove(held.pop(gone), gone)
        for subject in subjects:
            expected = sorted(n for n, f in held.items() if by_regex(f, subject))
            assert sorted(trie.match(subject)) == expected


@given(st.lists(FILTERS, max_size=8), st.lists(SUBJECTS, max_size=12))
def test_a_trie_that_forgets_all_the_time_finds_the_same(
    filters: list[str], subjects: list[str]
) -> None:
    trie: SubjectTrie[int] = SubjectTrie(states_max=2, cache_size_max=1)
    for number, subject_filter in enumerate(filters):
        trie.insert(subject_filter, number)
    for subject in subjects:
        expected = sorted(n for n, f in enumerate(filters) if by_regex(f, subject))
        assert sorted(trie.match(subject)) == expected


def test_what_a_trie_remembers_of_the_way_does_not_grow_with_what_is_published() -> None:
    trie: SubjectTrie[str] = SubjectTrie()
    trie.insert("a.*.c", "x")
    trie.insert("a.b.>", "y")
    for number in range(1_000):
        assert trie.match(f"a.n{number}.c") == ("x",)
        assert trie.match(f"n{number}.a.c") == ()
    states = trie.states
    assert states <= 4
    for number in range(1_000):
        trie.match(f"a.m{number}.c")
    assert trie.states == states


@pytest.mark.parametrize("subject_filter", ["*", ">", "a.*", "a.>", "*.b", "a.*.>"])
def test_a_filter_that_is_asked_for_finds_itself_once(subject_filter: str) -> None:
    trie: SubjectTrie[int] = SubjectTrie()
    trie.insert(subject_filter, 1)
    assert trie.covering(subject_filter) == (1,)
    assert trie.touching(subject_filter) == (1,)


def test_removing_what_is_not_there_is_a_key_error() -> None:
    trie: SubjectTrie[str] = SubjectTrie()
    trie.insert("a.b", "x")
    with pytest.raises(KeyError):
        trie.remove("a.b", "y")
    with pytest.raises(KeyError):
        trie.remove("a.c", "x")


def test_a_subject_with_wildcards_of_its_own_matches_no_literal() -> None:
    trie: SubjectTrie[str] = SubjectTrie()
    trie.insert("a.b", "literal")
    trie.insert("a.*", "wild")
    assert trie.match("a.*") == ("wild",)


@pytest.mark.parametrize(
    "subject",
    ["", ".", "a.", ".a", "a..b", "a b", "a\tb", "a.b\r\n", "a.>.b", "a>", "x*", "a" * 2000],
)
def test_malformed_filters_are_refused(subject: str) -> None:
    with pytest.raises(RefusedError) as raised:
        check_filter(subject)
    assert raised.value.code == "BAD_SUBJECT"


@pytest.mark.parametrize(
    "subject",
    [
        "_INBOX.>",
        "_INBOX.*.x",
        "_INBOX_tom.>",
        "$SYS.>",
        "$JS.API.>",
        "_PENSTOCK.a",
        "_R_.x",
    ],
)
def test_streams_must_not_bind_acks_inboxes_or_system_traffic(subject: str) -> None:
    check_filter(subject)
    for ack_on_reply in (True, False):
        with pytest.raises(RefusedError):
            check_stream_subject(subject, ack_on_reply=ack_on_reply)


@pytest.mark.parametrize("subject", [">", "*", "*.>", "*.a"])
def test_a_filter_that_begins_with_a_wildcard_must_not_ack(subject: str) -> None:
    with pytest.raises(RefusedError, match="ack_on_reply: false"):
        check_stream_subject(subject, ack_on_reply=True)
    check_stream_subject(subject, ack_on_reply=False)


@given(FILTERS | st.sampled_from([">", "*.>", "*"]), st.sampled_from(["_INBOX.a", "$JS.a", "a.b"]))
def test_a_filter_that_could_match_a_reserved_subject_is_known_by_its_first_token(
    subject_filter: str, subject: str
) -> None:
    if is_reserved(subject) and matches(subject_filter, subject):
        assert begins_with_wildcard(subject_filter)
    assert is_reserved(subject) == subject.encode().startswith(RESERVED_PREFIXES)


@pytest.mark.parametrize("subject", ["telemetry.logs.>", "a", "a.*.c", "größe.x"])
def test_ordinary_subjects_are_taken(subject: str) -> None:
    with does_not_raise():
        check_stream_subject(subject, ack_on_reply=True)
