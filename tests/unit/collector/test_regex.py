"""Groups found among a text's bytes are those found among its characters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.collector.regex import compile_pattern, groups_finder

PATTERNS = [
    r"(?P<path>/\S*) took (?P<ms>[0-9.]+) ms", r"(?P<a>a)?(?P<b>b|é)+(?P<c>.)?", r"(?P<a>)",
    r"(?P<word>\w+)\s(?P<rest>.*)", r"(?i:(?P<a>É))(?P<b>\pL*)", r"(?s)(?P<all>.*)", r"(a|(b))",
    r"(?P<nul>\x00)", r"(😀|\x{2028})(.?)", r"()($)", r"\b(?P<a>[^ ]+)\b", r"(\C)", r"^(.)$",
]  # fmt: skip
PARTS = st.sampled_from([*"ab é😀É/.1 \0\n\u2028", "/a took 5.1 ms"])
TEXTS = st.lists(PARTS, max_size=12).map("".join)


@given(st.sampled_from(PATTERNS), TEXTS | st.text(max_size=20))
def test_groups_are_those_of_the_characters(pattern: str, text: str) -> None:
    compiled = compile_pattern(pattern)
    match = compiled.search(text)
    numbers = range(1, compiled.groups + 1)
    found = groups_finder(pattern, numbers)(text)
    assert found == (None if match is None else [*match.groups()])
    if match is not None:
        assert groups_finder(pattern, [0])(text) == [match[0]]


def test_text_that_is_none_is_refused_either_way() -> None:
    for search in (compile_pattern("(a)").search, groups_finder("(a)", [1])):
        with pytest.raises(UnicodeEncodeError):
            search("\ud800a")
