"""What texts are taken apart into, and that no text breaks a parser."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.collector.decode.formats.key_values import read_logfmt
from penstock.collector.transforms.parse import (
    Reader,
    csv_reader,
    key_value_reader,
    read_clf,
    read_json,
    read_syslog,
    regex_reader,
)

YEAR_2026_NS = 1_767_225_600_000_000_000
READERS: dict[str, Reader] = {
    "json": read_json,
    "logfmt": read_logfmt,
    "key_value": key_value_reader(";", ":"),
    "csv": csv_reader(["a", "b"], ","),
    "clf": read_clf,
    "regex": regex_reader(r"(?P<user>\w+)@(?P<host>[\w.]+)(?P<port>:\d+)?"),
    "syslog": lambda text: read_syslog(text, YEAR_2026_NS),
}


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("json", '{"a":1,"b":{"c":[1]}}', {"a": 1, "b": {"c": [1]}}),
        ("json", "[1]", None),
        ("json", "{", None),
        (
            "logfmt", r'at=info msg="a \"b\"\nc" ms=12 cached',
            {"at": "info", "msg": 'a "b"\nc', "ms": "12", "cached": True},
        ),
        ("logfmt", 'a="unclosed b=1', {"a": '"unclosed', "b": "1"}),
        ("logfmt", 'a=1\tb="x\ty"\t c=2 \td', {"a": "1", "b": "x\ty", "c": "2", "d": True}),
        ("logfmt", "just words", None),
        ("logfmt", "", None),
        ("key_value", "a: 1;b:2 ; c:x:y", {"a": "1", "b": "2", "c": "x:y"}),
        ("key_value", "a:1;b", None),
        ("csv", 'x,"y ""z"", w"', {"a": "x", "b": 'y "z", w'}),
        ("csv", "x,y,z", None),
        ("csv", 'x,"y', None),
        ("regex", "mail bob@example.org now", {"user": "bob", "host": "example.org"}),
        ("regex", "nobody", None),
        ("syslog", "no header", None),
    ],
)  # fmt: skip
def test_texts_are_taken_apart(name: str, text: str, found: dict[str, Any] | None) -> None:
    assert READERS[name](text) == found


def test_the_combined_log_format() -> None:
    line = (
        '10.0.0.1 - ann [10/Oct/2025:13:55:36 -0700] "GET /a?b=c HTTP/1.1" 404 12 '
        r'"https://x/" "agent \"1\""'
    )
    assert read_clf(line) == {
        "client.address": "10.0.0.1",
        "http.response.status_code": 404,
        "http.request.method": "GET",
        "url.path": "/a",
        "url.query": "b=c",
        "network.protocol.version": "1.1",
        "http.response.body.size": 12,
        "user.name": "ann",
        "time": "2025-10-10T13:55:36-07:00",
        "http.request.header.referer": "https://x/",
        "user_agent.original": 'agent "1"',
    }


def test_the_common_log_format_has_no_agent_and_bad_requests_stay_whole() -> None:
    found = read_clf('::1 - - [99/Xxx/2025:13:55:36 -0700] "\\x16\\x03" 400 -')
    assert found == {
        "client.address": "::1",
        "http.response.status_code": 400,
        "http.request.line": "\\x16\\x03",
    }


def test_syslog_has_its_parts() -> None:
    text = '<165>1 2025-10-11T22:14:15.003Z host app 7 ID47 [x@1 k="v"] hello'
    found = read_syslog(text, YEAR_2026_NS)
    assert found is not None
    assert (found["host"], found["appname"], found["body"]) == ("host", "app", "hello")
    assert (found["facility.code"], found["severity.code"]) == (20, 5)
    assert found["structured_data"] == {"x@1": {"k": "v"}}


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=200) | st.text('"\\=,:;{}[]<>1 a-\n', max_size=80))
def test_no_text_breaks_a_parser(name: str, text: str) -> None:
    found = READERS[name](text)
    assert found is None or all(key.__class__ is str for key in found)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("part", ['"\\', 'a="', "a=", "(", "[1:", ", ", '{"a":', "<1>", " - - ["])
def test_long_texts_take_linear_time(name: str, part: str) -> None:
    """Of 32 KiB, a body's bound; the suite's timeout tells."""
    text = part * (32 * 1024 // len(part))
    found = READERS[name](text)
    assert found is None or isinstance(found, dict)
