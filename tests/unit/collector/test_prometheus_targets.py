"""Discovery of targets and relabelling: Prometheus' own rules, files and names that change."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from penstock.collector.sources.prometheus.discovery import (
    DiscoveryError,
    DnsSection,
    Target,
    labels_of_url,
    read_files,
    resolve,
    target_of,
)
from penstock.collector.sources.prometheus.relabel import RelabelRule, compile_rules
from penstock.collector.sources.prometheus.source import PrometheusSettings, PrometheusSource
from tests.support.spool_writer import SpoolingIntake, spooling
from tests.support.waiting import wait_until_async

LABELS = {"a": "foo", "b": "bar", "c": "baz", "__tmp": "x"}

RULES: list[tuple[dict[str, Any], dict[str, str] | None]] = [
    ({"source_labels": ["a"], "regex": "f(.*)", "target_label": "d", "replacement": "ch${1}-$1"},
     {**LABELS, "d": "choo-oo"}),
    ({"source_labels": ["a", "b"], "regex": "(.*);(.*)", "target_label": "a",
      "replacement": "$2;$1"}, {**LABELS, "a": "bar;foo"}),
    ({"source_labels": ["a"], "regex": "fo", "target_label": "d"}, LABELS),
    ({"source_labels": ["a"], "target_label": "b", "replacement": ""},
     {key: value for key, value in LABELS.items() if key != "b"}),
    ({"source_labels": ["a"], "regex": "(?P<x>f)(oo)", "target_label": "${x}_$2",
      "replacement": "$x$$$9"}, {**LABELS, "f_oo": "f$"}),
    ({"source_labels": ["a"], "regex": "(f)oo", "target_label": "$1-", "replacement": "v"}, LABELS),
    ({"source_labels": ["a", "b"], "separator": "", "regex": "foobar", "action": "keep"}, LABELS),
    ({"source_labels": ["a"], "regex": "o", "action": "keep"}, None),
    ({"source_labels": ["a"], "regex": "foo", "action": "drop"}, None),
    ({"source_labels": ["none"], "regex": "", "action": "drop"}, None),
    ({"source_labels": ["a"], "target_label": "b", "action": "keepequal"}, None),
    ({"source_labels": ["a"], "target_label": "b", "action": "dropequal"}, LABELS),
    ({"source_labels": ["c"], "target_label": "d", "modulus": 1000, "action": "hashmod"},
     {**LABELS, "d": "976"}),
    ({"regex": "(b.*)", "replacement": "bar_$1", "action": "labelmap"}, {**LABELS, "bar_b": "bar"}),
    ({"regex": "__.*|[ab]", "action": "labeldrop"}, {"c": "baz"}),
    ({"regex": "a|c", "action": "labelkeep"}, {"a": "foo", "c": "baz"}),
    ({"source_labels": ["a", "b"], "target_label": "d", "action": "uppercase"},
     {**LABELS, "d": "FOO;BAR"}),
    ({"source_labels": ["a"], "target_label": "d", "action": "lowercase"}, {**LABELS, "d": "foo"}),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "expected"), RULES)
def test_a_rule_does_what_prometheus_does(
    rule: dict[str, Any], expected: dict[str, str] | None
) -> None:
    before = dict(LABELS)
    assert compile_rules([RelabelRule.model_validate(rule)])(before) == expected
    assert before == LABELS


def test_rules_follow_one_another_and_end_where_one_drops() -> None:
    rules = [
        {"source_labels": ["a"], "target_label": "d"},
        {"source_labels": ["d"], "regex": "foo", "action": "drop"},
        {"source_labels": ["a"], "target_label": "e"},
    ]
    assert compile_rules([RelabelRule.model_validate(rule) for rule in rules])(LABELS) is None


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ({"source_labels": ["a"]}, "`target_label` is missing"),
        ({"action": "hashmod", "target_label": "a"}, "`modulus` is for hashmod"),
        ({"action": "keep", "modulus": 3}, "`modulus` is for hashmod"),
        ({"action": "labeldrop", "regex": "("}, "is no pattern of RE2"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(rule: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        RelabelRule.model_validate(rule)


def same(labels: dict[str, str]) -> dict[str, str]:
    return labels


def test_the_target_of_labels() -> None:
    labels = {
        "__address__": "h:1", "__param_module": "a b", "__meta_x": "y", "job": "j", "empty": "",
    }  # fmt: skip
    assert target_of(labels, same) == Target("http://h:1/metrics?module=a+b", (("job", "j"),))
    assert target_of({"job": "j"}, same) is None
    assert target_of({"__address__": "h"}, lambda _: None) is None
    url = "https://user:pw@h:9/probe?x=1"
    found = target_of(labels_of_url(url, {}), same)
    assert found == Target(url)


def test_files_in_json_and_yaml(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"targets": ["h:1", "i:2"], "labels": {"n": 5}}]')
    (tmp_path / "b.yml").write_text("- targets: ['j:3']\n")
    for number, text in enumerate(("{", "[1]", "- targets: x", "- {targets: [], labels: 5}")):
        (tmp_path / f"c{number}.yml").write_text(text)
    found, wrong = read_files([str(tmp_path / "*.json"), str(tmp_path / "*.yml")])
    assert [labels["__address__"] for part in found.values() for labels in part] == [
        "h:1", "i:2", "j:3"
    ]  # fmt: skip
    assert found[str(tmp_path / "a.json")][0] == {
        "__address__": "h:1", "n": "5", "__meta_filepath": str(tmp_path / "a.json")
    }  # fmt: skip
    assert len(wrong) == 4


async def test_names_of_dns() -> None:
    section = DnsSection(names=["localhost"], port=9100)
    assert await resolve(section, "localhost") == [
        {"__address__": "127.0.0.1:9100", "__meta_dns_name": "localhost"}
    ]
    with pytest.raises(DiscoveryError):
        await resolve(section, "none.invalid")


class Exporter:
    """Answers every scrape with one gauge, and keeps the paths that were asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.address = ""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.address = "{}:{}".format(*server.sockets[0].getsockname())
        async with server:
            yield

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.asked.append(head.split()[1].decode())
        body = b'depth{queue="a",site="own"} 1\nnoise{queue="a"} 2\n'
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n%b"
            % (len(body), body)
        )
        await writer.drain()
        writer.close()


@asynccontextmanager
async def scraping(directory: Path, **options: Any) -> AsyncIterator[SpoolingIntake]:
    section = PrometheusSettings.model_validate(
        {"type": "prometheus", "interval_s": 0.1, "refresh_s": 0.1, **options}
    )
    async with spooling(directory, "prometheus") as spool_writer:
        source = PrometheusSource(section, {}, spool_writer=spool_writer)
        await source.start()
        running = asyncio.ensure_future(source.run())
        try:
            yield spool_writer
        finally:
            await source.stop()
            await running


def points(spool_writer: SpoolingIntake, name: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in spool_writer.lines()]
    return [one for one in found if one["name"] == name]


async def test_targets_of_files_come_and_go_and_have_their_labels(tmp_path: Path) -> None:
    exporter = Exporter()
    async with exporter.running():
        path = tmp_path / "targets.json"
        path.write_text("[]")
        options: dict[str, Any] = {
            "files": [str(tmp_path / "*.json")],
            "relabel": [
                {"source_labels": ["kind"], "regex": "none", "action": "drop"},
                {"source_labels": ["path"], "target_label": "__metrics_path__"},
                {"regex": "path|kind", "action": "labeldrop"},
            ],
            "metric_relabel": [
                {"source_labels": ["__name__"], "regex": "noise", "action": "drop"},
                {"source_labels": ["queue"], "target_label": "line"},
            ],
        }
        async with scraping(tmp_path, **options) as spool_writer:
            own = {"job": "shop", "instance": "one", "site": "b", "path": "/one"}
            groups = [
                {"targets": [exporter.address], "labels": own},
                {"targets": [exporter.address], "labels": {"kind": "none", "path": "/none"}},
            ]
            path.write_text(json.dumps(groups))
            await wait_until_async(lambda: points(spool_writer, "depth"))
            point = points(spool_writer, "depth")[0]
            assert point["attributes"] == {
                "queue": "a", "exported_site": "own", "line": "a", "site": "b"
            }  # fmt: skip
            assert point["resource"]["service.name"] == "shop"
            assert point["resource"]["service.instance.id"] == "one"
            assert points(spool_writer, "noise") == []
            assert spool_writer.account.notes["samples_dropped_by_rules"] > 0
            path.write_text("{")
            await wait_until_async(lambda: spool_writer.account.notes["discoveries_failed"] > 0)
            count = len(exporter.asked)
            await wait_until_async(lambda: len(exporter.asked) > count + 1)  # it goes on
            groups[0]["labels"] = {**own, "path": "/two"}
            path.write_text(json.dumps(groups))
            await wait_until_async(lambda: "/two" in exporter.asked)
            count = len(exporter.asked)
            await wait_until_async(lambda: len(exporter.asked) > count + 2)
            assert "/one" not in exporter.asked[count:]
        assert set(exporter.asked) == {"/one", "/two"}


async def test_more_targets_than_allowed_are_left_out_and_counted(tmp_path: Path) -> None:
    exporter = Exporter()
    async with exporter.running():
        targets = [exporter.address, exporter.address.replace("127.0.0.1", "localhost")]
        (tmp_path / "t.json").write_text(json.dumps([{"targets": targets}]))
        options = {"files": [str(tmp_path / "t.json")], "max_targets": 1}
        async with scraping(tmp_path, **options) as spool_writer:
            await wait_until_async(lambda: len(points(spool_writer, "up")) > 1)
            hosts = {one["resource"]["server.address"] for one in points(spool_writer, "up")}
            assert hosts == {"127.0.0.1"}
            assert spool_writer.account.notes["targets_left_out"] > 0


async def test_a_configured_target_and_a_name_are_scraped_beside_each_other(tmp_path: Path) -> None:
    exporter = Exporter()
    async with exporter.running():
        port = int(exporter.address.rpartition(":")[2])
        options = {
            "targets": [f"http://{exporter.address}/fixed"],
            "dns": [{"names": ["localhost", "none.invalid"], "port": port}],
        }
        async with scraping(tmp_path, **options) as spool_writer:
            await wait_until_async(lambda: {"/fixed", "/metrics"} <= set(exporter.asked))
            await wait_until_async(lambda: spool_writer.account.notes["discoveries_failed"] > 0)
    assert set(exporter.asked) == {"/fixed", "/metrics"}


def test_a_source_without_targets_is_refused() -> None:
    with pytest.raises(ValidationError, match="set `targets`, `files` or `dns`"):
        PrometheusSettings.model_validate({"type": "prometheus"})
