"""Prometheus expositions as metric points, and scraping with everything bounded."""

import asyncio
import base64
import gzip
import json
import threading
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import orjson
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_open_metrics
from pydantic import ValidationError
from structlog.testing import capture_logs

from penstock.base.clock import SystemClock
from penstock.collector.decode.metrics import metric_line
from penstock.collector.decode.prometheus.exposition import Scraped, ScrapedPoint, read_exposition
from penstock.collector.errors import UndecodableError
from penstock.collector.sources.prometheus.source import PrometheusSettings, PrometheusSource
from penstock.specs.validate.validator import check_line
from penstock.specs.validate.verdict import Accepted
from tests.support.spool_writer import SpoolingIntake, spooling
from tests.support.waiting import wait_until_async

TEXT, OPEN = "text/plain; version=0.0.4", "application/openmetrics-text; version=1.0.0"
NOW = 1_700_000_000_000_000_000
SENDERS = Path("tests/golden/senders")


def read(body: bytes, content_type: str = TEXT, max_samples: int = 1000) -> Scraped:
    scraped = read_exposition(
        body, content_type, scrape_ns=NOW, first_scrape_ns=NOW - 5, max_samples=max_samples
    )
    for point in scraped.points:
        line = metric_line(
            point.name, point.unit, point.labels, point.typed,
            time_ns=point.time_ns or NOW, observed_ns=NOW, resource={"service.name": "s"},
        )  # fmt: skip
        assert isinstance(check_line(line), Accepted), (check_line(line), line)
    return scraped


@dataclass
class Counting:
    count: int = 0


def by_name(scraped: Scraped) -> dict[str, ScrapedPoint]:
    return {point.name: point for point in scraped.points}


@pytest.mark.parametrize(
    ("generate", "content_type"), [(generate_latest, TEXT), (generate_open_metrics, OPEN)]
)
def test_what_the_client_library_exposes_is_read(generate: Any, content_type: str) -> None:
    registry = CollectorRegistry()
    Counter("jobs", "J.", ["queue"], registry=registry).labels("a").inc(3)
    Gauge("depth", "D.", registry=registry).set(-1.5)
    Histogram("size_bytes", "S.", buckets=(1, 5), registry=registry).observe(2)
    Summary("wait_seconds", "W.", registry=registry).observe(0.5)
    found = by_name(read(generate(registry), content_type))
    assert found["jobs_total"].labels == {"queue": "a"}
    assert found["jobs_total"].typed == {
        "metric_type": "sum", "value": 3.0, "is_monotonic": True, "temporality": "cumulative",
        "start_time_unix_nano": NOW - 5,
    }  # fmt: skip
    assert found["depth"].typed == {"metric_type": "gauge", "value": -1.5}
    histogram = found["size_bytes"].typed
    assert (histogram["bucket_counts"], histogram["explicit_bounds"]) == ([0, 1, 0], [1.0, 5.0])
    assert (histogram["count"], histogram["sum"]) == (1, 2.0)
    assert found["wait_seconds_count"].typed["is_monotonic"] is True
    assert found["wait_seconds_sum"].typed["is_monotonic"] is False


def test_sums_begin_with_the_process_where_it_says_so() -> None:
    text = b"# TYPE a_total counter\na_total 1\nprocess_start_time_seconds 5\n"
    assert by_name(read(text))["a_total"].typed["start_time_unix_nano"] == 5_000_000_000


def test_sums_and_histograms_begin_when_they_were_created() -> None:
    registry, generate = CollectorRegistry(), cast("Any", generate_open_metrics)
    before_ns = SystemClock().unix_ns()
    Counter("jobs", "J.", ["queue"], registry=registry).labels("a").inc(3)
    Histogram("size_bytes", "S.", buckets=(1, 5), registry=registry).observe(2)
    Summary("wait_seconds", "W.", registry=registry).observe(0.5)
    now_ns = SystemClock().unix_ns() + 1_000_000_000
    found = read_exposition(
        generate(registry), OPEN,
        scrape_ns=now_ns, first_scrape_ns=now_ns, max_samples=100,
    )  # fmt: skip
    starts = [point.typed["start_time_unix_nano"] for point in found.points]
    assert len(starts) == 4
    assert all(before_ns - 1000 <= start_ns < now_ns for start_ns in starts)
    assert found.notes["help_texts_dropped"] == 3


def test_what_is_said_of_a_family_and_in_comments_is_counted() -> None:
    body = b"# TYPE a info\n# HELP a An info.\na_info 1\n# TYPE b counter\nb_total 1\n# EOF\n"
    assert +read(body, OPEN).notes == {"help_texts_dropped": 1, "family_types_dropped": 1}
    body = b"# a comment\n#another\n# HELP a A.\n# TYPE a gauge\na 1 \n  # EOF\n"
    assert +read(body).notes == {"help_texts_dropped": 1, "comments_dropped": 2}


def test_names_and_values_stay_as_the_exporter_has_them() -> None:
    scraped = read((SENDERS / "client_golang.prom").read_bytes())
    made = [
        metric_line(
            point.name, point.unit, point.labels, point.typed,
            time_ns=NOW, observed_ns=NOW, resource={"service.name": "s"},
        )
        for point in scraped.points
    ]  # fmt: skip
    assert all(isinstance(check_line(line), Accepted) for line in made)
    found = [
        (it["name"], it.get("attributes"), it.get("value", it.get("sum")))
        for it in map(orjson.loads, made)
    ]
    assert found == [
        ("job:deadline:max", {}, "Infinity"),
        ("lowest", {}, "-Infinity"),
        ("node_memory_MemAvailable_bytes", {}, 1.5e9),
        ("node_memory_memavailable_bytes", {}, 7.0),
        ("rpc_duration_seconds", {"quantile": "0.5"}, "NaN"),
        ("rpc_duration_seconds", {"quantile": "0.99"}, "NaN"),
        ("rpc_duration_seconds_sum", {}, 0.0),
        ("rpc_duration_seconds_count", {}, 0.0),
        ("size_bytes", {}, "NaN"),
    ]


def test_times_of_samples_are_kept() -> None:
    scraped = read(b"c 1 1600000000000\n")
    assert [(p.name, p.time_ns) for p in scraped.points] == [("c", 1_600_000_000_000_000_000)]


def test_quantiles_are_gauges_and_other_types_too() -> None:
    text = b'# TYPE s summary\ns{quantile="0.5"} 2\ns_count 1\nuntyped 3\n'
    found = by_name(read(text))
    assert (found["s"].typed["metric_type"], found["s"].labels) == ("gauge", {"quantile": "0.5"})
    assert found["untyped"].typed["metric_type"] == "gauge"


def test_a_histogram_without_its_last_bucket_is_no_point_and_is_counted() -> None:
    whole = b'h_bucket{a="b",le="+Inf"} 2\nh_sum{a="b"} 1\n'
    text = b'# TYPE h histogram\nh_bucket{le="1"} 2\nh_count 2\nh_sum 1\n' + whole
    scraped = read(text)
    assert [point.labels for point in scraped.points] == [{"a": "b"}]
    assert (scraped.samples, scraped.malformed) == (5, 3)


def test_exemplars_stay_with_their_points_as_far_as_a_record_has_room() -> None:
    trace, span = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    buckets = "".join(
        f'h_bucket{{le="{n}.0"}} {n} # {{trace_id="odd"}} {n} {1600000000 - n}\n' for n in range(5)
    )
    text = (
        "# TYPE a counter\n"
        f'a_total 5 # {{trace_id="{trace}",span_id="{span}",k="v"}} 1.5 1600000000.5\n'
        "# TYPE b counter\nb_total 5 # {} 1\n"
        "# TYPE c counter\nc_total 5 # {} NaN\n"
        "# TYPE d counter\nd_total 5 # {} 1 -1\n"
        "# TYPE e counter\ne_total 5 # {} 1 1e300\n"
        f'# TYPE h histogram\n{buckets}h_bucket{{le="+Inf"}} 5\nh_count 5\nh_sum 5\n# EOF\n'
    )
    scraped = read(text.encode(), OPEN)
    found = by_name(scraped)
    assert found["a_total"].typed["exemplars"] == [
        {
            "time_unix_nano": 1_600_000_000_500_000_000, "value": 1.5,
            "trace_id": trace, "span_id": span, "attributes": {"k": "v"},
        }
    ]  # fmt: skip
    assert found["b_total"].typed["exemplars"] == [{"time_unix_nano": NOW, "value": 1.0}]
    assert found["c_total"].typed["exemplars"] == [{"time_unix_nano": NOW, "value": "NaN"}]
    assert not any("exemplars" in found[f"{name}_total"].typed for name in "de")
    values = [(one["value"], one["attributes"]) for one in found["h"].typed["exemplars"]]
    assert values == [(float(n), {"trace_id": "odd"}) for n in (3, 2, 1, 0)]
    assert scraped.exemplars_dropped == 3


@pytest.mark.parametrize("body", [b"\xff", b"a{", b"a x", b"a 1\n" * 1001])
def test_what_is_no_exposition_is_refused_whole(body: bytes) -> None:
    with pytest.raises(UndecodableError):
        read(body)


@given(st.text(alphabet='ab_ {}="\\\n#1.e+-TYPEhistogramcounterle,', max_size=60))
def test_no_text_makes_the_reader_raise_anything_else(text: str) -> None:
    for content_type in (TEXT, OPEN):
        try:
            read_exposition(
                text.encode(), content_type, scrape_ns=NOW, first_scrape_ns=NOW, max_samples=10
            )
        except UndecodableError:
            continue


@asynccontextmanager
async def scraping(
    directory: Path,
    answer: bytes,
    *,
    others: Mapping[str, bytes | None] | None = None,
    user_info: str = "",
    limits: Mapping[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[tuple[SpoolingIntake, list[bytes]]]:
    """A source that scrapes a server which answers with these bytes.

    Args:
        others: What it answers by path; None: never.
        user_info: Of the URLs, with its @.
        limits: The source's own, beside its section.
    """
    asked: list[bytes] = []
    others = others or {}
    connections: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        said = others.get(asked[-1].split()[1].decode(), answer)
        connections.append(writer)
        if said is not None:
            writer.write(said)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    targets = [f"http://{user_info}127.0.0.1:{port}{path}" for path in ("/metrics?x=1", *others)]
    section = PrometheusSettings.model_validate(
        {"type": "prometheus", "targets": targets, **options}
    )
    async with spooling(directory, "prometheus") as spool_writer:
        source = PrometheusSource(
            section, {"host.name": "h"}, spool_writer=spool_writer, **(limits or {})
        )
        await source.start()
        running = asyncio.ensure_future(source.run())
        try:
            await wait_until_async(spool_writer.lines)
            yield spool_writer, asked
        finally:
            await source.stop()
            await running
            server.close()
            for writer in connections:
                writer.close()
            await asyncio.gather(
                *(writer.wait_closed() for writer in connections), return_exceptions=True
            )


def reply(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def values(spool_writer: SpoolingIntake) -> dict[str, float]:
    found = [json.loads(line) for line in spool_writer.lines()]
    assert {record["resource"]["server.address"] for record in found} == {"127.0.0.1"}
    return {record["name"]: record["value"] for record in found}


async def test_a_scrape_says_that_the_target_is_up(tmp_path: Path) -> None:
    body = gzip.compress(b"a 1\n")
    answer = reply(body, "200 OK", "content-encoding: gzip", f"content-type: {TEXT}")
    async with scraping(tmp_path, answer, bearer_token="key") as (spool_writer, asked):
        found = values(spool_writer)
        assert (found["a"], found["up"], found["scrape_samples_scraped"]) == (1, 1, 1)
        assert asked[0].startswith(b"GET /metrics?x=1 HTTP/1.1\r\n")
        assert b"authorization: Bearer key\r\n" in asked[0].lower().replace(b"bearer", b"Bearer")


async def test_a_token_of_a_file_is_read_for_each_scrape(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old\n")
    answer = reply(b"a 1\n", "200 OK", f"content-type: {TEXT}")
    token = {"file": str(file)}
    async with scraping(tmp_path, answer, bearer_token=token, interval_s=0.1) as (_, asked):
        assert b"bearer old\r\n" in asked[0].lower()
        file.write_text("new\n")
        await wait_until_async(lambda: b"bearer new\r\n" in asked[-1].lower())


async def test_a_target_may_have_a_user_and_a_password(tmp_path: Path) -> None:
    answer = reply(b"a 1\n", "200 OK", f"content-type: {TEXT}")
    async with scraping(tmp_path, answer, user_info="me:p%40ss@") as (spool_writer, asked):
        assert values(spool_writer)["up"] == 1
        assert b"authorization: basic " + base64.b64encode(b"me:p@ss").lower() in asked[0].lower()


@pytest.mark.parametrize(
    "answer",
    [
        b"", b"nonsense\r\n\r\n", reply(b"a 1\n", "500 Oh"), reply(b"a {"),
        reply(b"a 1\n" * 400),
        reply(gzip.compress(b"#" * 90_000), "200 OK", "content-encoding: gzip"),
        b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\na 1\n",
    ],
    ids=["nothing", "no http", "status", "no metrics", "large", "bomb", "ends early"],
)  # fmt: skip
async def test_everything_else_says_that_it_is_down(tmp_path: Path, answer: bytes) -> None:
    async with scraping(tmp_path, answer, limits={"bytes_max": 1000}) as (spool_writer, _):
        assert values(spool_writer)["up"] == 0
        assert spool_writer.account.notes["scrapes_failed"] == 1


@pytest.mark.parametrize("content_type", [TEXT, OPEN])
def test_an_answer_with_too_many_samples_is_refused_before_it_is_parsed(
    content_type: str,
) -> None:
    """One family of all of them: the parser would meet what it cannot read at their end."""
    body = b"# TYPE a gauge\n" + b" \n\n#\n" * 9 + b"".join(b'a{n="%d"} 1\n' % n for n in range(9))
    assert read(body + b"# EOF\n", max_samples=9).samples == 9
    broken = body + b"a{\n# EOF\n"
    with pytest.raises(UndecodableError, match="not Prometheus metrics"):
        read(broken, content_type, max_samples=10)
    with pytest.raises(UndecodableError, match="more than 8 samples"):
        read(broken, content_type, max_samples=8)


async def test_large_answers_that_take_long_to_read_delay_no_small_ones(tmp_path: Path) -> None:
    """Nor the checkpoint, which is written in a thread; and no target is down for it."""
    go_on, begun = threading.Event(), Counting()
    large = b"# " + b"large" * 20_000

    def read_long(body: bytes, *_: object, **__: object) -> Scraped:
        if body == large:
            begun.count += 1
            go_on.wait()
        return Scraped(samples=len(body))

    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    others = {"/one": reply(large), "/two": reply(large)}
    options: dict[str, Any] = {
        "interval_s": 0.1,
        "timeout_s": 2.0,
        "limits": {"large_bytes": len(large) - 1, "read": read_long},
    }
    try:
        async with scraping(tmp_path, reply(b"a 1\n"), others=others, **options) as (
            spool_writer,
            asked,
        ):
            await wait_until_async(lambda: begun.count == 1 and len(asked) > 24)
            assert await asyncio.to_thread(lambda: "written") == "written"
            assert scraped(spool_writer) == {4}
            go_on.set()
            await wait_until_async(lambda: begun.count > 3)
            await wait_until_async(lambda: scraped(spool_writer) == {4, len(large)})
            assert spool_writer.account.notes["scrapes_failed"] == 0
    finally:
        go_on.set()


async def test_a_target_that_never_answers_is_down(tmp_path: Path) -> None:
    others = {"/slow": None}
    async with scraping(tmp_path, reply(b"a 1\n"), others=others, timeout_s=2.0) as (
        spool_writer,
        _,
    ):
        await wait_until_async(lambda: spool_writer.account.notes["scrapes_failed"] == 1)


def scraped(spool_writer: SpoolingIntake) -> set[float]:
    records = map(json.loads, spool_writer.lines())
    return {one["value"] for one in records if one["name"] == "scrape_samples_scraped"}


@pytest.mark.parametrize(
    "target",
    [
        "http://a..b/", "http://[::1/", "http://h:99999/", "http://h:x/", "http://h:0/", "http://:9/",
        "http://h/\u00e4", "http://h/\x01", f"http://{'h' * 64}/",
    ],
)  # fmt: skip
def test_a_target_that_cannot_be_asked_is_refused_when_the_configuration_is_read(
    target: str,
) -> None:
    document = {"type": "prometheus", "targets": ["http://127.0.0.1:1/metrics", target]}
    with pytest.raises(ValidationError, match="targets"):
        PrometheusSettings.model_validate(document)


@pytest.mark.parametrize("token", ["", "key\n", "a b", "\u00e4", "a\0"])
def test_a_token_that_no_header_holds_is_refused_and_not_said(token: str) -> None:
    document = {"type": "prometheus", "targets": ["http://h/"], "bearer_token": token}
    with pytest.raises(ValidationError, match="printable ASCII"):
        PrometheusSettings.model_validate(document)


@pytest.mark.parametrize(
    "samples",
    [
        'h_bucket{le="+Inf"} NaN',
        'h_bucket{le="+Inf"} +Inf',
        'h_bucket{le="+Inf"} 1e300',
        'h_bucket{le="x"} 1',
        'h_bucket{le="+Inf"} 1 99999999999999999999999',
    ],
)
def test_a_family_that_makes_no_sense_is_counted_and_costs_no_other(samples: str) -> None:
    found = read(f"# TYPE h histogram\n{samples}\n# TYPE b gauge\nb 1\n".encode())
    assert [point.name for point in found.points] == ["b"]
    assert (found.samples, found.malformed) == (2, 1)


def test_a_native_histogram_is_counted_as_malformed() -> None:
    body = b"# TYPE a histogram\na {count:1,sum:2,schema:3,zero_threshold:1,zero_count:1}\n# EOF\n"
    assert read(body, OPEN).malformed == 1


async def test_what_is_secret_in_a_target_is_not_said_when_it_fails(tmp_path: Path) -> None:
    target = "http://user:secret@127.0.0.1:1/metrics?token=secret"
    section = PrometheusSettings.model_validate({"type": "prometheus", "targets": [target]})
    async with spooling(tmp_path, "prometheus") as spool_writer:
        with capture_logs() as logs:
            spool_writer.log = structlog.get_logger()
            source = PrometheusSource(section, {}, spool_writer=spool_writer)
            await source.start()
            running = asyncio.ensure_future(source.run())
            await wait_until_async(lambda: "127.0.0.1:1" in str(logs))
            await source.stop()
            await asyncio.gather(running, return_exceptions=True)
    assert "127.0.0.1:1" in str(logs)
    assert "secret" not in str(logs)
