"""Grok, URL, user agent, XML and GeoIP, through a graph made of configuration text."""

import json
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import structlog
from mmdb_writer import MMDBWriter
from pydantic import ValidationError

from penstock.collector.agent.derived_config import tables_of
from penstock.collector.transforms.graph.graph import Graph
from penstock.collector.transforms.texts.grok import PATTERNS, compile_grok
from penstock.collector.transforms.texts.url import read_url
from penstock.collector.transforms.texts.xml import XmlReader
from penstock.collector.transforms.transform import SettingsError
from tests.support.collector_graph import delivered, graph_of, log, process
from tests.support.geoip import city_database

ROOT = Path(__file__).resolve().parents[3]


def graph_with(section: dict[str, Any]) -> Graph:
    """A graph of one transform that redacts nothing, as it would addresses and names."""
    transforms = {"t": {"inputs": ["app"], **section}}
    return graph_of({"transforms": transforms, "sensitive": {"enabled": False}})


def record_of(section: dict[str, Any], line: bytes) -> dict[str, Any]:
    graph = graph_with(section)
    [(_, record)] = delivered(process(graph, line))
    found: dict[str, Any] = record
    return found


def attributes_of(section: dict[str, Any], line: bytes) -> dict[str, Any]:
    found: dict[str, Any] = record_of(section, line)["attributes"]
    return found


def refusal_of(section: dict[str, Any], line: bytes) -> str:
    (refused,) = process(graph_with({**section, "on_failure": "quarantine"}), line).refused
    return refused.reason


COMBINED = (
    '203.0.113.9 - till [27/Nov/2026:12:00:00 +0000] "GET /cart?id=7 HTTP/1.1" 200 512'
    ' "https://shop.example/" "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101'
    ' Firefox/128.0"'
)


def test_grok_reads_a_line_of_a_web_server() -> None:
    section: dict[str, Any] = {
        "type": "grok",
        "patterns": ["^%{COMBINEDAPACHELOG}$"],
        "lift": {"time": "timestamp"},
    }
    record = record_of(section, log(COMBINED))
    assert record["time_unix_nano"] == 1_795_780_800 * 10**9
    assert record["attributes"] == {
        "client.address": "203.0.113.9", "user.name": "till", "http.request.method": "GET",
        "url.original": "/cart?id=7", "network.protocol.version": "1.1",
        "http.response.status_code": 200, "http.response.body.size": 512,
        "http.request.header.referer": "https://shop.example/",
        "user_agent.original": COMBINED.split('"')[5],
    }  # fmt: skip


def test_grok_takes_the_first_pattern_that_fits_and_its_own_definitions() -> None:
    section: dict[str, Any] = {
        "type": "grok",
        "prefix": "app.",
        "patterns": [
            r"%{ORDER:order} took %{NUMBER:[time][ms]:float}",
            r"(?<what>\w+) (?P<how.often>\d+)",
        ],
        "definitions": {"ORDER": r"[A-Z]{2}%{INT}"},
        "types": {"how.often": "int"},
    }
    assert attributes_of(section, log("AB17 took 12.5 ms")) == {
        "app.order": "AB17", "app.time.ms": 12.5,
    }  # fmt: skip
    assert attributes_of(section, log("beeps 7")) == {"app.what": "beeps", "app.how.often": 7}
    assert refusal_of(section, log("---")) == "transform t: text is not of any of the patterns"


GROK_SAMPLES = {
    "IPV4": ["192.0.2.255"], "IPV6": ["2001:db8::1", "::1", "fe80::1%eth0", "::ffff:192.0.2.1"],
    "IPORHOST": ["192.0.2.1", "shop.example", "2001:db8::1"], "HOSTPORT": ["shop.example:8080"],
    "EMAILADDRESS": ["a.b+c@shop.example"], "MAC": ["00:1a:2b:3c:4d:5e", "001a.2b3c.4d5e"],
    "UUID": ["123e4567-e89b-12d3-a456-426614174000"], "QS": ['"a \\" b"', "'c'"],
    "URI": ["https://till:x@shop.example:8443/a/b?c=d"], "UNIXPATH": ["/var/log/app.log"],
    "WINPATH": [r"C:\logs\app.log"], "NUMBER": ["-1.5", ".5", "+7"], "BASE16NUM": ["0xFF", "ff"],
    "TIMESTAMP_ISO8601": ["2026-11-27T12:00:00.123Z", "2026-11-27 12:00:00,123+01:00"],
    "HTTPDATE": ["27/Nov/2026:12:00:00 +0000"], "SYSLOGTIMESTAMP": ["Nov  7 12:00:00"],
    "DATESTAMP": ["11/27/2026 12:00:00"], "DATESTAMP_RFC2822": ["Fri, 27 Nov 2026 12:00:00 +0000"],
    "LOGLEVEL": ["WARN", "Error", "information"], "MONTH": ["May", "September", "Nov"],
    "DAY": ["Mon", "Wednesday", "Thursday"], "TZ": ["UTC"], "POSINT": ["7"], "PROG": ["cron.daily"],
    "BOOLEAN": ["True", "off"],
}  # fmt: skip


@pytest.mark.parametrize("name", GROK_SAMPLES)
def test_a_pattern_is_found_whole(name: str) -> None:
    compiled = compile_grok(f"^%{{{name}:it}}$", {})
    for sample in GROK_SAMPLES[name]:
        assert compiled.read(sample) == {"it": sample}


@pytest.mark.parametrize(
    ("name", "text"),
    [("IPV4", "256.1.1.1"), ("MONTHNUM", "13"), ("HOUR", "24"), ("INT", "1.5"), ("UUID", "123e")],
)
def test_a_pattern_is_not_found(name: str, text: str) -> None:
    assert compile_grok(f"^%{{{name}:it}}$", {}).read(text) is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("at 12:34:56 from 10.0.0.1", "10.0.0.1"),
        ("std::abs of fe80::1:2", "fe80::1:2"),
        ("1:2:3:4:5:6:7::", "1:2:3:4:5:6:7::"),
        ("1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7:8"),
        ("1::7:8", "1::7:8"),
        ("1:2:3:4:5:6:10.0.0.1", "1:2:3:4:5:6:10.0.0.1"),
        ("64:ff9b::10.0.0.1 x", "64:ff9b::10.0.0.1"),
        ("[::1]:80", "::1"),
    ],
)
def test_an_address_is_found_among_what_looks_like_one(text: str, found: str) -> None:
    assert compile_grok("%{IP:it}", {}).read(text) == {"it": found}


@pytest.mark.parametrize("name", PATTERNS)
def test_each_pattern_compiles(name: str) -> None:
    assert compile_grok(f"%{{{name}:it}}", {}).keys[0] == ("it", None)


@pytest.mark.parametrize(
    ("pattern", "definitions", "why"),
    [
        ("%{NONE:a}", {}, "there is no pattern NONE"),
        ("%{A:a}", {"A": "%{B}", "B": "%{A}"}, "does one call itself"),
        ("%{A:a}", {"A": "x" * 70_000}, "longer than 65536 characters"),
        ("plain", {}, "names no field"),
        ("%{INT:a} (x)", {}, "a group without a name"),
        ("%{INT:a:date}", {}, "types are"),
        ("%{INT:a}(?=x)", {}, "no pattern of RE2"),
    ],
)
def test_a_pattern_that_cannot_be_used_is_refused(
    pattern: str, definitions: dict[str, str], why: str
) -> None:
    section: dict[str, Any] = {"type": "grok", "patterns": [pattern], "definitions": definitions}
    with pytest.raises(ValidationError, match=why):
        graph_with(section)


def test_patterns_that_double_each_other_become_no_larger_than_allowed() -> None:
    definitions = {f"A{n}": f"%{{A{n + 1}}}%{{A{n + 1}}}" for n in range(15)} | {"A15": "x"}
    with pytest.raises(ValueError, match="longer than"):
        compile_grok("%{A0:a}", definitions)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://till:secret@Shop.example:8443/a/b?c=d&e=%20f#g",
         {"url.scheme": "https", "url.domain": "shop.example", "url.port": 8443,
          "url.path": "/a/b", "url.query": "c=d&e=%20f", "url.fragment": "g"}),
        ("/cart?id=7", {"url.path": "/cart", "url.query": "id=7"}),
        ("//shop.example/a", {"url.domain": "shop.example", "url.path": "/a"}),
        ("http://[2001:db8::1]:80/", {"url.scheme": "http", "url.domain": "2001:db8::1",
                                      "url.port": 80, "url.path": "/"}),
        ("mailto:a@b.example", {"url.scheme": "mailto", "url.path": "a@b.example"}),
        ("no url", None), ("", None), ("word", None), ("http://[::1", None), ("http://h:x/", None),
    ],
)  # fmt: skip
def test_the_parts_of_a_url(text: str, expected: dict[str, Any] | None) -> None:
    assert read_url(text) == expected


def test_url_as_a_transform() -> None:
    line = log(attributes={"url.full": "https://a.example/?x=1&x=2&y="})
    section: dict[str, Any] = {"type": "url", "parameters": True}
    assert attributes_of(section, line) == {
        "url.full": "https://a.example/?x=1&x=2&y=", "url.scheme": "https",
        "url.domain": "a.example", "url.path": "/", "url.query": "x=1&x=2&y=",
        "url.query.x": "2", "url.query.y": "",
    }  # fmt: skip
    many = "/?" + "&".join(f"k{n}=1" for n in range(65))
    assert set(attributes_of(section, log(attributes={"url.full": many}))) == {
        "url.full", "url.path", "url.query"
    }  # fmt: skip
    assert refusal_of({"type": "url", "field": "body"}, log("no url")) == (
        "transform t: text is not a URL"
    )


def test_a_user_agent() -> None:
    text = COMBINED.split('"')[5]
    line = log(attributes={"user_agent.original": text})
    section: dict[str, Any] = {"type": "user_agent"}
    assert attributes_of(section, line) == {
        "user_agent.original": text, "user_agent.name": "Firefox",
        "user_agent.version": "128.0", "user_agent.os.name": "Linux",
    }  # fmt: skip
    assert refusal_of(section, log(attributes={"user_agent.original": "?"})) == (
        "transform t: text is not a user agent"
    )
    long = log(attributes={"user_agent.original": text + "x" * 30_000})
    assert attributes_of(section, long)["user_agent.name"] == "Firefox"


EVENT = """<?xml version="1.0"?>
<Event xmlns="urn:e"><System><Provider Name="till"/><EventID Qualifiers="0">7</EventID></System>
<Data>a</Data><Data>b</Data><Text>x &lt; y</Text></Event>"""


def test_xml() -> None:
    section: dict[str, Any] = {"type": "xml", "types": {"n": "int"}, "lift": {"body": "Text"}}
    record = record_of(section, log(EVENT))
    assert record["body"] == "x < y"
    assert record["attributes"] == {
        "System.Provider.@Name": "till", "System.EventID.@Qualifiers": "0",
        "System.EventID.#text": "7", "Data": ["a", "b"],
    }  # fmt: skip
    section = {"type": "xml", "namespaces": True}
    assert "{urn:e}Data" in attributes_of(section, log(EVENT))
    assert attributes_of({"type": "xml"}, log("<n>7</n>")) == {"n": "7"}
    mixed = "<m>one <b>two</b> three<c/> </m>"
    assert attributes_of({"type": "xml"}, log(mixed)) == {"#text": "one three", "b": "two", "c": ""}


BOMB = '<!DOCTYPE a [<!ENTITY a "aaaaaaaaaa">]><a>&a;</a>'
DEEP = "<a>" * 17 + "x" + "</a>" * 17


@pytest.mark.parametrize(
    "text",
    ["", "text", "<a>", "<a/><b/>", BOMB, '<!DOCTYPE a SYSTEM "file:///etc/passwd"><a/>', DEEP,
     "<a>" * 5_000, "<r>" + "<a/>" * 5000 + "</r>", "<a>&none;</a>", "<a>\x00</a>"],
)  # fmt: skip
def test_what_is_no_xml_that_is_allowed(text: str) -> None:
    assert XmlReader(16, keeps_namespaces=False).read(text) is None
    reason = "transform t: text is not XML that is allowed"
    assert refusal_of({"type": "xml"}, log(text)) == reason


@pytest.fixture
def city(tmp_path: Path) -> Path:
    return city_database(tmp_path)


def test_geoip(city: Path) -> None:
    section: dict[str, Any] = {"type": "geoip", "database": str(city), "prefix": "client."}
    found = attributes_of(section, log(attributes={"client.address": "203.0.113.9"}))
    assert found == {
        "client.address": "203.0.113.9", "client.geo.continent.code": "EU",
        "client.geo.country.iso_code": "DE", "client.geo.country.name": "Germany",
        "client.geo.region.iso_code": "BE", "client.geo.region.name": "Land Berlin",
        "client.geo.locality.name": "Berlin", "client.geo.postal_code": "10115",
        "client.geo.location.lat": 52.5, "client.geo.location.lon": 13.4,
        "client.geo.timezone": "Europe/Berlin",
    }  # fmt: skip
    found = attributes_of(section, log(attributes={"client.address": "2001:db8::1"}))
    assert found["client.as.number"] == 64500
    assert found["client.as.organization.name"] == "Example"


def test_geoip_counts_what_its_database_does_not_know(city: Path) -> None:
    section: dict[str, Any] = {"type": "geoip", "database": str(city)}
    graph = graph_with(section)
    lines = [log(attributes={"client.address": text}) for text in ("192.0.2.1", "192.0.2.1", "x")]
    outcome = process(graph, *lines)
    assert [record["attributes"] for _, record in delivered(outcome)] == [
        {"client.address": "192.0.2.1"}, {"client.address": "192.0.2.1"}, {"client.address": "x"},
    ]  # fmt: skip
    assert graph.counts()["t"] == {"received": 3, "sent": 3, "addresses_unknown": 2}
    assert refusal_of(section, lines[2]) == "transform t: field is not an IP address"


def test_geoip_counts_and_names_a_damaged_database_and_keeps_the_record(city: Path) -> None:
    data = city.read_bytes()
    end = data.rindex(b"\xab\xcd\xefMaxMind.com")
    begin = data.index(b"\0" * 16) + 16  # the data section follows 16 zeros
    damaged = city.with_name("damaged.mmdb")
    damaged.write_bytes(data[:begin] + b"\xff" * (end - begin) + data[end:])
    graph = graph_with({"type": "geoip", "database": str(damaged), "on_failure": "quarantine"})
    line = log(attributes={"client.address": "203.0.113.7"})
    with structlog.testing.capture_logs() as logs:
        outcome = process(graph, line, line)
    assert [record["attributes"] for _, record in delivered(outcome)] == [
        {"client.address": "203.0.113.7"}, {"client.address": "203.0.113.7"},
    ]  # fmt: skip
    assert graph.counts()["t"] == {"received": 2, "sent": 2, "database_damaged": 2}
    (entry,) = [one for one in logs if one["event"] == "geoip_database_damaged"]
    assert entry["path"] == str(damaged)


def test_geoip_keeps_no_text_that_is_too_long_for_an_address(city: Path) -> None:
    graph = graph_with({"type": "geoip", "database": str(city)})
    tracemalloc.start()
    try:
        for number in range(200):
            process(graph, log(attributes={"client.address": f"{number}" + "x" * 30_000}))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2_000_000


def test_another_edition_of_a_database_is_a_change(city: Path) -> None:
    section: dict[str, Any] = {"type": "geoip", "database": str(city)}
    before = tables_of(graph_with(section))
    assert tables_of(graph_with(section)) == before
    json.dumps(before)
    MMDBWriter(6, "GeoLite2-ASN").to_db_file(str(city))
    assert tables_of(graph_with(section)) != before


@pytest.mark.parametrize("content", [None, b"no database"])
def test_a_database_that_cannot_be_read_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "x.mmdb"
    if content is not None:
        path.write_bytes(content)
    section: dict[str, Any] = {"type": "geoip", "database": str(path)}
    with pytest.raises(SettingsError, match=r"transforms.t.database: .* cannot be read"):
        graph_with(section)


@pytest.mark.parametrize(
    ("kind", "library"),
    [("user_agent", "ua_parser"), ("xml", "defusedxml"), ("geoip", "maxminddb")],
)
def test_a_transform_without_its_library_names_the_extra(kind: str, library: str) -> None:
    """In an environment that has the collector's extra alone."""
    section = {"type": kind, "inputs": ["app"], "database": "x.mmdb", "field": "body"}
    section = {key: value for key, value in section.items() if kind == "geoip" or key != "database"}
    program = (
        "from tests.support.extras_only import forbid_all_but; forbid_all_but(['collector'])\n"
        "from tests.support.collector_graph import graph_of\n"
        f"graph_of({{'transforms': {{'changed': {section!r}}}}})"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    extra = kind.replace("_", "")
    said = rf"transforms\.changed\.type: {library} is not installed; .*\[{extra}\]"
    assert re.search(said, done.stderr), done.stderr[-2000:]
