"""Each transform, through a graph made of configuration text."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from penstock.collector.decode.syslog import decode_syslog
from penstock.collector.sources.network.framing import pack_messages
from penstock.collector.spool.spool import Unit
from penstock.collector.transforms.enrich import container_facts
from penstock.collector.transforms.transform import DropReason, SettingsError
from tests.support.collector_graph import config_of, delivered, graph_of, log, process
from tests.unit.specs import records

SECOND = 1_000_000_000


def transformed(section: dict[str, Any], *lines: bytes, **more: Any) -> Any:
    graph = graph_of({"transforms": {"t": {"inputs": ["app"], **section}}})
    return process(graph, *lines, **more)


def record_of(section: dict[str, Any], line: bytes) -> dict[str, Any]:
    [(_, record)] = delivered(transformed(section, line))
    return record


def test_parse_makes_attributes_and_lifts_fields() -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    text = json.dumps(
        {"msg": "hi", "lvl": "warn", "ts": "2026-01-01T00:00:00Z", "t": trace, "n": {"x": "7"}}
    )
    lift = {"body": "msg", "severity": "lvl", "time": "ts", "trace_id": "t", "span_id": "absent"}
    section = {"type": "parse", "format": "json", "lift": lift, "prefix": "app."}
    record = record_of(section, log(text))
    assert record["body"] == "hi"
    assert (record["severity_number"], record["severity_text"]) == (13, "WARN")
    assert record["time_unix_nano"] == 1_767_225_600 * SECOND
    assert record["trace_id"] == trace
    assert record["attributes"] == {"app.n.x": "7"}


def test_what_parse_cannot_lift_is_kept_and_counted() -> None:
    lift = {"severity": "lvl", "time": "ts"}
    graph = graph_of(
        {"transforms": {"t": {"type": "parse", "inputs": ["app"], "format": "json", "lift": lift}}}
    )
    texts: list[dict[str, Any]] = [
        {"lvl": "loud", "ts": "soon"}, {"lvl": 99}, {"lvl": "warn", "ts": 1_767_225_600}, {},
        {"lvl": None, "ts": ""},
    ]  # fmt: skip
    found = delivered(process(graph, *(log(json.dumps(text)) for text in texts)))
    assert found[0][1]["attributes"] == {"lvl": "loud", "ts": "soon"}
    assert graph.counts()["t"] == {
        "received": 5, "sent": 5, "levels_unknown": 2, "timestamps_unreadable": 1,
    }  # fmt: skip


@pytest.mark.parametrize("code", range(8))
def test_parse_gives_a_syslog_message_the_severity_that_the_source_gives_it(code: int) -> None:
    text = f"<{16 * 8 + code}>1 2026-01-01T00:00:00Z host app - - - hello"
    record = record_of({"type": "parse", "format": "syslog"}, log(text))
    unit = Unit("s", "syslog", pack_messages([text.encode()]), 1, 5, meta={"service": "s"})
    ((line, _),) = decode_syslog(unit, {})
    expected = json.loads(line)
    for key in ("severity_number", "severity_text", "body", "time_unix_nano"):
        assert record[key] == expected[key]
    assert record["attributes"]["log.syslog.severity.code"] == code
    assert "log.syslog.severity_number" not in record["attributes"]


def test_parse_leaves_the_severity_of_a_syslog_message_without_priority() -> None:
    record = record_of({"type": "parse", "format": "syslog"}, log("Oct 11 22:14:15 host app: hi"))
    before = json.loads(log("x"))
    assert record["body"] == "hi"
    assert record["severity_number"] == before["severity_number"]
    assert not [key for key in record["attributes"] if "severity" in key or "facility" in key]


def test_parse_converts_types_and_keeps_what_does_not_convert() -> None:
    section = {
        "type": "parse", "format": "csv", "columns": ["a", "b", "c", "d"],
        "types": {"a": "int", "b": "double", "c": "bool", "d": "int"},
    }  # fmt: skip
    record = record_of(section, log("7,1.5,true,many"))
    assert record["attributes"] == {"a": 7, "b": 1.5, "c": True, "d": "many"}


@pytest.mark.parametrize(
    ("on_failure", "ended", "reason"),
    [("pass", None, None), ("filter", DropReason.FILTERED, None), ("quarantine", None, "not json")],
)
def test_a_text_that_cannot_be_parsed(
    on_failure: str, ended: DropReason | None, reason: str | None
) -> None:
    outcome = transformed({"type": "parse", "format": "json", "on_failure": on_failure}, log("no"))
    assert ([ended] if ended else []) == list(outcome.ended)
    assert [r.reason for r in outcome.refused] == (
        [f"transform t: text is {reason}"] if reason else []
    )
    assert len(delivered(outcome)) == (0 if ended or reason else 1)


def test_parse_counts_what_has_no_room() -> None:
    text = json.dumps({f"k{n}": n for n in range(200)})
    record = record_of({"type": "parse", "format": "json"}, log(text, attributes={"own": 1}))
    assert len(record["attributes"]) == 128
    assert record["attributes"]["own"] == 1
    assert record["dropped_attributes_count"] == 73


def test_timestamp_takes_the_time_from_a_text() -> None:
    noon = 1_709_294_400 * SECOND
    line = log("Fri Mar 01 12:00:00 2024 [error] lost")
    assert record_of({"type": "timestamp"}, line)["time_unix_nano"] == noon
    section = {"type": "timestamp", "pattern": r"at=(\S+)", "layouts": ["%d.%m.%YT%H:%M"]}
    assert record_of(section, log("x at=01.03.2024T12:00"))["time_unix_nano"] == noon
    section = {"type": "timestamp", "field": "attributes.when", "timezone": "Europe/Berlin"}
    for when in ("2024-03-01 13:00:00", noon // SECOND, str(noon)):
        record = record_of(section, log("x", attributes={"when": when}))
        assert (record["time_unix_nano"], record["attributes"]) == (noon, {"when": when})


def test_a_record_whose_time_cannot_be_read_ends_as_configured() -> None:
    assert record_of({"type": "timestamp"}, log("no time"))["body"] == "no time"
    outcome = transformed({"type": "timestamp", "on_error": "filter"}, log("no time"))
    assert outcome.ended[DropReason.FILTERED] == 1
    graph = graph_of({"transforms": {"t": {"inputs": ["app"], "type": "timestamp",
                                           "on_error": "quarantine"}}})  # fmt: skip
    outcome = process(graph, log("no time"), log("2026-01-01T00:00:00Z in time"))
    assert graph.counts()["t"] == {
        "received": 2, "sent": 1, "quarantined": 1, "timestamps_unreadable": 1,
    }  # fmt: skip
    assert [refused.reason for refused in outcome.refused] == [
        "transform t: timestamp: no time can be read where it should stand"
    ]
    for wrong, said in (
        ({"layouts": ["noon"]}, "is no layout"), ({"timezone": "Mars"}, "is no time zone"),
        ({"pattern": "("}, "is no pattern"),
    ):  # fmt: skip
        with pytest.raises(ValidationError, match=said):
            config_of({"transforms": {"t": {"type": "timestamp", "inputs": ["app"], **wrong}}})


def test_edit_renames_then_sets_then_removes() -> None:
    section = {
        "type": "edit",
        "rename": {"attributes.user": "attributes.buyer.team", "attributes.absent": "body"},
        "set": {
            "severity_number": "attributes.status >= 500 ? 17 : severity_number",
            "attributes.half": "attributes.status / 2",
            "attributes.gone": "null",
            "resource.deployment.environment.name": '"test"',
        },
        "remove": ["attributes.status"],
    }
    given = log(attributes={"user": "ann", "status": 502, "gone": 1})
    record = record_of(section, given)
    assert record["attributes"] == {"buyer.team": "ann", "half": 251.0}
    assert record["severity_number"] == 17
    assert record["resource"]["deployment.environment.name"] == "test"


def test_what_a_transform_breaks_is_quarantined_with_its_name() -> None:
    graph = graph_of(
        """
        transforms:
          fine: {type: edit, inputs: [app], set: {attributes.a: '1'}}
          breaks: {type: edit, inputs: [fine], set: {severity_number: '99'}}
          later: {type: edit, inputs: [breaks], set: {attributes.b: '1'}}
        """
    )
    given = log()
    [refused] = process(graph, given).refused
    assert refused.reason.startswith("transform breaks: invalid: severity_number")
    assert refused.line is given


def test_what_arrives_broken_is_no_transforms_fault() -> None:
    section = {"type": "edit", "set": {"severity_number": "9"}}
    [refused] = transformed(section, log(severity_number=99)).refused
    assert refused.reason.startswith("invalid: severity_number")


def test_what_no_transform_changes_goes_on_as_its_bytes() -> None:
    given = (
        b'{ "schema" : "log/1.0", "kind":"log","time_unix_nano":1,"severity_number":9,'
        b'"body":"x","resource":{"service.name":"shop"},"observed_time_unix_nano":5}'
    )
    outcome = transformed({"type": "filter", "where": "severity_number == 9"}, given)
    [batch] = outcome.batches.values()
    assert batch.lines == [given]


def test_route_sends_to_the_first_match_and_its_subject() -> None:
    graph = graph_of(
        """
        transforms:
          r:
            type: route
            inputs: [app]
            routes:
              bad: {where: 'severity_number >= 17', subject: 'alerts.{service}.{attributes.tenant}'}
              slow: {where: 'attributes.ms > 100'}
        """
    )
    outcome = process(
        graph,
        log(severity_number=17, attributes={"tenant": "a.b>*", "ms": 500}),
        log(attributes={"ms": 500}),
        log(),
    )
    assert [subject for subject, _ in delivered(outcome)] == [
        "alerts.shop.a_b__", "telemetry.logs.shop", "telemetry.logs.shop",
    ]  # fmt: skip
    assert graph.counts()["r"] == {"received": 3, "sent": 3}


def test_redact_takes_out_more_before_the_scrubber_does() -> None:
    section = {
        "type": "redact",
        "fields": ["attributes.note"],
        "patterns": {"order": "o-[0-9]+"},
    }
    record = record_of(section, log("order o-17 by ann@shop.example", attributes={"note": "x"}))
    assert record["body"] == "order [redacted:order] by [redacted:pii]"
    assert record["attributes"] == {"note": "[redacted:t]"}


NAMED = {"pet.name": "ann", "pet.kind": "u-1", "to": ["bob", "cy"], "ms": 7, "none": None}


@pytest.mark.parametrize(
    ("field", "hidden"),
    [
        ("attributes.*", {"pet.name", "pet.kind", "to", "ms"}),
        ("attributes.pet.*", {"pet.name", "pet.kind"}),
        ("attributes.*name", {"pet.name"}),
        ("attributes.to", {"to"}),
        ('attributes["pet.*"]', set()),
    ],
)
@pytest.mark.parametrize("verb", ["replace", "remove", "edit"])
def test_a_rule_for_several_attributes_hides_what_it_names_and_nothing_else(
    field: str, hidden: set[str], verb: str
) -> None:
    """It was once taken for a key with a star, which no record has."""
    section: dict[str, Any] = {"type": "redact", "fields": [field], "action": verb}
    if verb == "edit":
        section = {"type": "edit", "remove": [field]}
    left = record_of(section, log(attributes=NAMED)).get("attributes") or {}
    assert {key: left[key] for key in left if left[key] != "[redacted:t]"} == {
        key: value for key, value in NAMED.items() if key not in hidden
    }
    assert (hidden <= left.keys()) == (verb == "replace" or not hidden)


def test_a_rule_for_several_resource_attributes_hides_them() -> None:
    section = {"type": "redact", "fields": ["resource.host.*"], "action": "remove"}
    line = log(resource={"service.name": "shop", "host.name": "h", "host.ip": "192.0.2.7"})
    assert record_of(section, line)["resource"] == {"service.name": "shop"}


@pytest.mark.parametrize(
    "section",
    [
        {"type": "edit", "rename": {"attributes.a*": "attributes.b"}},
        {"type": "edit", "set": {"attributes.*": "null"}},
        {"type": "redact", "fields": ["attribute.*"]},
        {"type": "redact", "fields": ["events.*"]},
        {"type": "redact", "fields": ["user_*"]},
    ],
)
def test_a_name_that_no_record_can_have_is_refused(section: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=r"several fields|names no field|no field|nothing in"):
        config_of({"transforms": {"t": {"inputs": ["app"], **section}}})


def test_redact_searches_lists_and_what_lies_in_spans() -> None:
    section = {"type": "redact", "patterns": {"order": "o-[0-9]+"}}
    record = record_of(section, log(attributes={"seen": ["o-1", 2, "x", None], "a": "b"}))
    assert record["attributes"] == {"seen": ["[redacted:order]", 2, "x", None], "a": "b"}
    event = {"name": "e", "time_unix_nano": 1, "attributes": {"for": "o-1", "n": 1}}
    link = {"trace_id": "1" * 32, "span_id": "1" * 16, "attributes": {"for": "o-2"}}
    line = json.dumps(records.span(events=[event], links=[link])).encode()
    record = record_of(section, line)
    assert record["events"][0]["attributes"] == {"for": "[redacted:order]", "n": 1}
    assert record["links"][0]["attributes"] == {"for": "[redacted:order]"}


@pytest.mark.parametrize(
    "pattern", ["^x[0-9]", "x[0-9]$", r"\bx[0-9]\b", "[^a]x1", r"\Ax1\z", "x1"]
)
def test_redact_finds_what_each_text_alone_would_show(pattern: str) -> None:
    texts = ["x1", "ax1", " x1", "x1 ", "b x1 c", ""]
    section = {"type": "redact", "patterns": {"p": pattern}}
    attributes = {f"k{number}": text for number, text in enumerate(texts)}
    together = record_of(section, log("", attributes=attributes))["attributes"]
    alone = [record_of(section, log(text))["body"] for text in texts]
    assert [*together.values()] == alone


def test_sampling_is_by_trace_keeps_errors_and_says_the_weight() -> None:
    section = {"type": "sample", "ratio": 0.25}
    traces = [f"{n:032x}" for n in range(1, 401)]
    lines = [log(trace_id=trace) for trace in traces]
    first = transformed(section, *lines, first=1)
    again = transformed(section, *reversed(lines), first=9000)
    kept = {record["trace_id"] for _, record in delivered(first)}
    assert kept == {record["trace_id"] for _, record in delivered(again)}
    assert 60 <= len(kept) <= 140
    assert {record["sample_weight"] for _, record in delivered(first)} == {4}
    assert first.ended == {DropReason.SAMPLED: 400 - len(kept)}
    errors = transformed(section, *[log(severity_number=17)] * 50)
    assert [record.get("sample_weight") for _, record in delivered(errors)] == [None] * 50


def test_sampling_without_a_trace_depends_on_the_place_alone() -> None:
    section = {"type": "sample", "ratio": 0.5}
    lines = [log(f"n{n}") for n in range(100)]
    one, other = transformed(section, *lines), transformed(section, *lines)
    assert delivered(one) == delivered(other)
    assert 0 < len(delivered(one)) < 100


def test_throttle_lets_a_burst_through_and_then_its_rate() -> None:
    section = {"type": "throttle", "inputs": ["app"], "rate": 2, "burst": 3, "key": "attributes.k"}
    graph = graph_of({"transforms": {"t": section}})
    lines = [log(attributes={"k": k}) for k in "aaaaab"]
    outcome = process(graph, *lines)
    assert [record["attributes"]["k"] for _, record in delivered(outcome)] == [*"aaab"]
    assert outcome.ended == {DropReason.THROTTLED: 2}
    assert len(delivered(process(graph, *lines[:5], now_ns=SECOND))) == 2


def test_a_blocking_throttle_loses_nothing_and_makes_its_source_wait() -> None:
    section = {"type": "throttle", "rate": 2, "burst": 1, "when_exceeded": "block"}
    outcome = transformed(section, *[log()] * 5)
    assert len(delivered(outcome)) == 5
    assert outcome.pause_ns == 2 * SECOND


def test_throttle_and_dedupe_remember_no_more_than_allowed() -> None:
    keys = [log(attributes={"k": n}) for n in (1, 2, 3, 1)]
    throttle = {"type": "throttle", "rate": 1, "max_keys": 2, "key": "attributes.k"}
    assert len(delivered(transformed(throttle, *keys))) == 4  # 1 was forgotten, and is full again
    dedupe = {"type": "dedupe", "max_keys": 2, "key": "attributes.k"}
    assert len(delivered(transformed(dedupe, *keys))) == 4
    wide = {"type": "dedupe", "max_keys": 3, "key": "attributes.k"}
    assert transformed(wide, *keys).ended == {DropReason.DEDUPLICATED: 1}


def test_dedupe_ends_with_its_window_and_judges_all_but_the_times() -> None:
    graph = graph_of({"transforms": {"t": {"type": "dedupe", "inputs": ["app"], "window_s": 10}}})
    assert len(delivered(process(graph, log(), log(time_unix_nano=7), log("other")))) == 2
    assert delivered(process(graph, log(), now_ns=9 * SECOND)) == []
    assert len(delivered(process(graph, log(), now_ns=10 * SECOND))) == 1


def test_logs_become_metrics_of_bounded_number_and_pass_the_gate() -> None:
    graph = graph_of(
        """
        transforms:
          m:
            type: logs_to_metrics
            inputs: [app]
            name: shop.requests
            dimensions: {http.route: attributes.route}
            max_series: 2
        """
    )
    routes = ["/a", "/a", "/b", "/c", "/d"]
    outcome = process(graph, *[log(attributes={"route": r}, sample_weight=2) for r in routes])
    assert outcome.ended == {DropReason.AGGREGATED: 5}
    assert graph.flush(0, 100 * SECOND) == {}
    made = graph.flush(10 * SECOND, 100 * SECOND)
    assert graph.flush(30 * SECOND, 100 * SECOND) == {}
    out = process(graph, *made["m"], source="m", resource=b"")
    assert out.refused == []
    points = {
        (r["resource"]["service.name"], r["attributes"]["http.route"]): r for _, r in delivered(out)
    }
    assert {key: point["value"] for key, point in points.items()} == {
        ("shop", "/a"): 4, ("shop", "/b"): 2, ("other", "other"): 4,
    }  # fmt: skip
    point = points["shop", "/a"]
    assert (point["temporality"], point["is_monotonic"]) == ("delta", True)
    assert point["start_time_unix_nano"] == 90 * SECOND


@pytest.mark.parametrize("name", ["Shop.Requests_Total", "1st/ms", "Umsätze (€)", "x" * 255])
def test_a_metric_of_logs_may_have_any_name_that_a_metric_has(name: str) -> None:
    section = {"type": "logs_to_metrics", "inputs": ["app"], "name": name}
    graph = graph_of({"transforms": {"m": section}})
    process(graph, log())
    made = graph.flush(0, 1, everything=True)
    [(_, point)] = delivered(process(graph, *made["m"], source="m", resource=b""))
    assert (point["name"], point["value"]) == (name, 1)


def test_a_measured_value_becomes_a_histogram_and_no_number_is_refused() -> None:
    section = {
        "type": "logs_to_metrics", "inputs": ["app"], "name": "shop.ms", "unit": "ms",
        "metric": "histogram", "value": "attributes.ms",
    }  # fmt: skip
    graph = graph_of({"transforms": {"m": section}})
    outcome = process(graph, log(attributes={"ms": 5}), log(attributes={"ms": 7}), log())
    assert [r.reason.partition(":")[0] for r in outcome.refused] == ["transform m"]
    made = graph.flush(0, 1, everything=True)
    [(_, point)] = delivered(process(graph, *made["m"], source="m", resource=b""))
    assert (point["count"], point["min"], point["max"], point["sum"]) == (2, 5, 7, 12)


def test_enrich_adds_and_never_replaces(tmp_path: Path) -> None:
    table = tmp_path / "owners.csv"
    table.write_text("service,team,tier\nshop,checkout,1\n")
    section = {
        "type": "enrich",
        "host": True,
        "tables": [
            {
                "file": str(table),
                "key": "resource.service.name",
                "column": "service",
                "prefix": "owner.",
            }
        ],
    }
    record = record_of(section, log(attributes={"owner.tier": "9"}))
    assert record["attributes"] == {"owner.tier": "9", "owner.team": "checkout"}
    assert record["resource"]["host.name"] == "host-1"


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.csv", "service,team\nx,1\nx,2\n", "row 2 repeats the service"),
        ("a.csv", "team\n1\n", "row 1 has no service"),
        ("a.json", "{}", "must be a list"),
        ("a.json", "[", "neither CSV"),
        ("b.csv", None, "cannot be read"),
    ],
)
def test_a_wrong_table_is_named(tmp_path: Path, name: str, text: str | None, words: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    table = {"file": str(tmp_path / name), "key": "body", "column": "service"}
    with pytest.raises(SettingsError, match=words):
        graph_of({"transforms": {"t": {"type": "enrich", "inputs": ["app"], "tables": [table]}}})


def test_containers_are_known_by_the_paths_of_their_logs(tmp_path: Path) -> None:
    uid = "0f3b5e0c-62f7-4a4b-8b0e-2b0b5a1c9d11"
    facts, _ = container_facts(f"/var/log/pods/shop_cart-7f9_{uid}/app/3.log", None)
    assert facts == {
        "k8s.namespace.name": "shop", "k8s.pod.name": "cart-7f9", "k8s.pod.uid": uid,
        "k8s.container.name": "app", "k8s.container.restart_count": 3,
    }  # fmt: skip
    number = "ab" * 32
    facts, _ = container_facts(f"/var/log/containers/cart_shop_app-{number}.log", None)
    assert (facts["k8s.pod.name"], facts["container.id"]) == ("cart", number)
    directory = tmp_path / "containers" / number
    directory.mkdir(parents=True)
    labels = {"com.docker.compose.service": "cart"}
    inner = {"Image": "r.example:5000/shop/cart:2", "Labels": labels}
    config = {"ID": number, "Name": "/cart", "Config": inner}
    (directory / "config.v2.json").write_text(json.dumps(config))
    path = str(directory / f"{number}-json.log")
    record = record_of(
        {"type": "enrich", "container": True}, log(attributes={"log.file.path": path})
    )
    assert record["resource"] == {
        "service.name": "shop", "container.id": number, "container.name": "cart",
        "container.image.name": "r.example:5000/shop/cart", "container.image.tags": ["2"],
        "docker.compose.service": "cart",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"type": "filter", "where": "bdy == 1"}, "did you mean body"),
        ({"type": "parse", "format": "regex"}, "needs one"),
        ({"type": "parse", "format": "regex", "pattern": "("}, "RE2"),
        ({"type": "parse", "format": "regex", "pattern": "a"}, "names no group"),
        ({"type": "edit", "set": {"kind": "'log'"}}, "cannot be changed"),
        ({"type": "edit"}, "set `rename`"),
        ({"type": "route", "routes": {"unmatched": {"where": "true"}}}, "name it otherwise"),
        (
            {"type": "route", "routes": {"a": {"where": "true", "subject": "{service}.x"}}},
            "first token",
        ),
        (
            {"type": "route", "routes": {"a": {"where": "true", "subject": "a.>"}}},
            "tokens of letters",
        ),
        ({"type": "sample", "ratio": 0}, "greater than or equal"),
        ({"type": "logs_to_metrics", "name": ""}, "at least 1 character"),
        ({"type": "logs_to_metrics", "name": "x" * 256}, "at most 255 characters"),
        ({"type": "enrich"}, "set `host`"),
        ({"type": "brew"}, "brew"),
    ],
)
def test_mistakes_are_refused(section: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        config_of({"transforms": {"t": {"inputs": ["app"], **section}}})
    assert words in str(caught.value)
