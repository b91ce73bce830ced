"""The OpenTelemetry Collector's configuration: receivers and processors of its pipelines.

Each pipeline's processors become transforms behind its receivers, in their order. What a receiver
has for pipelines of several signals is parted by signal before. Exporters belong to the router.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from penstock.collector.importing.conditions import attribute, from_ottl, literal, ottl_place
from penstock.collector.importing.draft import (
    KINDS,
    Draft,
    Given,
    address,
    listed,
    seconds,
    shown,
    size_bytes,
)
from penstock.collector.importing.scraping import scrape_jobs

Values = dict[str, Any]
_NEEDLESS: Final = ("batch", "memory_limiter", "groupbytrace")
"""Processors that need no counterpart: the collector batches and bounds its memory by itself."""

_INSTEAD: Final[Mapping[str, str]] = {
    "docker_observer": "a source `file` with the section `docker` names its containers",
    "k8s_observer": "a source `file` with the section `kubernetes` names the pods of its files,"
    " and `kubernetes` of a source `prometheus` finds pods to scrape",
}
"""What to write in place of an extension."""


def import_otel_collector(document: Mapping[str, Any]) -> Draft:
    """Rewrite a configuration."""
    draft = Draft("the OpenTelemetry Collector")
    given = Given(document, "otel")
    receivers, processors = given.take("receivers", {}), given.take("processors", {})
    service = given.section("service")
    service.skip("telemetry")
    pipelines: Mapping[str, Any] = service.take("pipelines", {})
    used = {name for one in pipelines.values() for name in listed(one.get("receivers"))}
    made = {
        name: _receiver(draft, name, Given(receivers.get(name), f"receivers.{name}"))
        for name in receivers if name in used
    }  # fmt: skip
    for name in receivers:
        if name not in used:
            draft.note(f"receivers.{name}", "no pipeline has it")
    shared = _part_signals(draft, pipelines, made)
    for pipeline, parts in pipelines.items():
        signal = _signal_of(pipeline)
        inputs = [
            one
            for name in listed(parts.get("receivers"))
            for one in shared.get((name, signal), made.get(name, []))
        ]
        for name in listed(parts.get("processors")):
            section = Given(processors.get(name), f"processors.{name} ({pipeline})")
            inputs = _processor(draft, pipeline, name, section, inputs)
    for name in given.take("exporters", {}):
        draft.note(
            f"exporters.{name}", "exporters are the router's sinks; see docs/router/sinks.md"
        )
    for name in ("connectors", "extensions"):
        for part in given.take(name, {}):
            draft.note(f"{name}.{part}", _INSTEAD.get(part.partition("/")[0], "no counterpart"))
    service.skip("extensions")
    draft.notes += [*given.left(), *service.left()]
    return draft


def _signal_of(pipeline: str) -> str:
    return pipeline.partition("/")[0]


def _part_signals(
    draft: Draft, pipelines: Mapping[str, Any], made: Mapping[str, Iterable[str]]
) -> dict[tuple[str, str], list[str]]:
    """Part the records of receivers that pipelines of several signals have.

    A pipeline takes nothing but its signal, while a transform takes all kinds: without this a
    record would go through the transforms of each pipeline, and be delivered once for each.

    Returns:
        By receiver and signal, the parts that the records come out of.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for name, parts in made.items():
        having = [
            pipeline for pipeline, one in pipelines.items() if name in listed(one.get("receivers"))
        ]
        signals = {_signal_of(one): None for one in having if _signal_of(one) in KINDS}
        changes = any(
            one.partition("/")[0] in _PROCESSORS
            for pipeline in having
            for one in listed(pipelines[pipeline].get("processors"))
        )
        if len(signals) > 1 and changes and parts:
            parted = draft.part_signals(name, parts, signals)
            found |= {(name, one): inputs for one, inputs in parted.items()}
    return found


# Receivers.


def _receiver(draft: Draft, name: str, given: Given) -> list[str]:
    kind = name.partition("/")[0]
    if kind == "prometheus":
        return _scrapes(draft, name, given)
    if kind == "k8sobjects":
        return _objects(draft, name, given)
    make = _RECEIVERS.get(kind)
    if make is None:
        draft.note(given.where, "there is no such source here")
        return []
    values = make(given)
    if (tls := _tls(given)) is not None:
        values["tls"] = tls
    operators = given.take("operators", [])
    given.skip("storage", "retry_on_failure", "include_file_path", "include_file_name",
               "poll_interval", "fingerprint_size", "max_concurrent_files")  # fmt: skip
    own = draft.source(name, values)
    last = own
    for number, operator in enumerate(operators):
        section = Given(operator, f"{given.where}.operators.{number}")
        last = _operator(draft, own, last, section)
    draft.sources[own].notes += given.left()
    return [last]


def _scrapes(draft: Draft, name: str, given: Given) -> list[str]:
    """Add a source for each job; one alone has the receiver's name."""
    config = given.section("config")
    jobs = [*scrape_jobs(config, dollars=True)]
    draft.notes += [*config.left(), *given.left()]
    return [
        draft.source(name if len(jobs) == 1 else f"{name}_{job}", values, notes)
        for job, values, notes in jobs
    ]


def _objects(draft: Draft, name: str, given: Given) -> list[str]:
    """Add a source for the events; other objects are no records here."""
    made: list[str] = []
    given.skip("auth_type")
    for number, one in enumerate(given.take("objects", [])):
        section = Given(one, f"{given.where}.objects.{number}")
        if section.take("name") != "events":
            draft.note(section.where, f"only events are taken: {shown(one)}")
            continue
        section.skip("mode", "interval", "group", "exclude_watch_type")
        values = {
            "type": "kubernetes_events",
            "namespaces": listed(section.take("namespaces")) or None,
        }
        made.append(draft.source(name, values, section.left()))
    draft.notes += given.left()
    return made


def _tls(given: Given) -> Values | None:
    tls = given.section("tls")
    cert, key, authority = tls.take("cert_file"), tls.take("key_file"), tls.take("client_ca_file")
    if not cert or not key:
        return None
    return {"cert_file": cert, "key_file": key} | ({"ca_file": authority} if authority else {})


def _filelog(given: Given) -> Values:
    values: Values = {"type": "file", "include": listed(given.take("include"))}
    values["service"] = given.where.partition("/")[2] or "file"
    values["exclude"] = listed(given.take("exclude")) or None
    values["start_at"] = given.take("start_at", "end")
    values["ignore_older_s"] = seconds(given.take("exclude_older_than"))
    if given.take("delete_after_read"):
        values["remove_after_s"] = 0
    size = size_bytes(given.take("max_log_size"))
    values["max_line_bytes"] = None if size is None else max(64, min(size, 1 << 20))
    values["encoding"] = given.take("encoding")
    multiline = given.section("multiline")
    begin, end = multiline.take("line_start_pattern"), multiline.take("line_end_pattern")
    values["multiline"] = {"start": begin} if begin else ({"end": end} if end else None)
    return values


def _otlp(given: Given) -> Values:
    protocols = given.section("protocols")
    values: Values = {"type": "otlp"}
    for part, default in (("grpc", "0.0.0.0:4317"), ("http", "0.0.0.0:4318")):
        if part in protocols.values:
            section = protocols.section(part)
            values[part] = address(section.take("endpoint"), default)
            if (tls := _tls(section)) is not None:
                values["tls"] = tls
    return values


def _syslog(given: Given) -> Values:
    values: Values = {"type": "syslog"}
    for part in ("tcp", "udp"):
        if part in given.values:
            values[part] = address(given.section(part).take("listen_address"), "0.0.0.0:514")
    values["timezone"] = given.take("location")
    given.skip("protocol")
    return values


def _socket(part: str) -> Callable[[Given], Values]:
    return lambda given: {
        "type": "socket", part: address(given.take("listen_address"), "0.0.0.0:9000"),
    }  # fmt: skip


def _at(kind: str, default: str) -> Callable[[Given], Values]:
    return lambda given: {"type": kind, "listen": address(given.take("endpoint"), default)}


def _events(given: Given) -> Values:
    given.skip("auth_type")
    return {"type": "kubernetes_events", "namespaces": listed(given.take("namespaces")) or None}


def _journald(given: Given) -> Values:
    given.skip("directory", "priority")
    return {
        "type": "journald", "units": listed(given.take("units")) or None,
        "start_at": given.take("start_at", "end"),
    }  # fmt: skip


def _host_metrics(given: Given) -> Values:
    given.skip("scrapers", "root_path", "initial_delay")
    return {"type": "host_metrics", "interval_s": seconds(given.take("collection_interval"))}


_RECEIVERS: Final[Mapping[str, Callable[[Given], Values]]] = {
    "datadog": _at("datadog", "0.0.0.0:8126"),
    "filelog": _filelog,
    "fluentforward": _at("forward", "0.0.0.0:8006"),
    "hostmetrics": _host_metrics,
    "journald": _journald,
    "k8s_events": _events,
    "loki": lambda given: {
        "type": "loki",
        "listen": address(given.section("protocols").section("http").take("endpoint"), ":3500"),
    },
    "otlp": _otlp,
    "prometheusremotewrite": _at("prometheus_remote_write", "0.0.0.0:9090"),
    "splunk_hec": _at("splunk_hec", "0.0.0.0:8088"),
    "statsd": lambda given: {
        "type": "statsd", "udp": address(given.take("endpoint"), "0.0.0.0:8125")
    },
    "syslog": _syslog,
    "tcplog": _socket("tcp"),
    "udplog": _socket("udp"),
    "zipkin": _at("zipkin", "0.0.0.0:9411"),
}  # fmt: skip


# Operators of the receiver filelog and its like.

_PARSERS: Final[Mapping[str, Values]] = {
    "json_parser": {"type": "parse", "format": "json"},
    "key_value_parser": {"type": "parse", "format": "key_value"},
    "syslog_parser": {"type": "parse", "format": "syslog"},
}


def _operator(draft: Draft, source: str, last: str, given: Given) -> str:
    """Add what an operator does; returns the part that the records come out of now."""
    kind = str(given.take("type", ""))
    given.skip("id", "output", "on_error")
    if kind in {"container", "docker", "cri"}:
        form = given.take("format") or ("docker" if kind == "docker" else "cri")
        draft.sources[source].values["format"] = "docker" if form == "docker" else "cri"
        return last
    step = _operator_step(kind, given)
    if step is None:
        draft.note(given.where, f"no counterpart; left out: {shown(given.values)}")
        return last
    return draft.transform(f"{source}_{kind}", [last], step, given.left())


def _operator_step(kind: str, given: Given) -> Values | None:
    field = _stanza_place(given.take("parse_from"))
    own = {} if field in {None, "body"} else {"field": field}
    time = given.section("timestamp").take("parse_from")
    level = given.section("severity").take("parse_from")
    lift = {
        key: str(value).rpartition(".")[2] for key, value in (("time", time), ("severity", level))
        if value
    }  # fmt: skip
    if (known := _PARSERS.get(kind)) is not None:
        given.skip("parse_to")
        return {**known, **own, "lift": lift or None}
    match kind:
        case "regex_parser":
            pattern = str(given.take("regex", "")).replace("(?<", "(?P<")
            return {
                "type": "parse", "format": "regex", "pattern": pattern, **own, "lift": lift or None,
            }  # fmt: skip
        case "time_parser":
            layout = given.take("layout")
            layouts = [str(layout)] if "%" in str(layout) else None
            given.skip("layout_type")
            return {"type": "timestamp", "field": field or "body", "layouts": layouts}
        case "add" | "move" | "copy" | "remove":
            return _edit(kind, given)
        case _:
            return None


def _edit(kind: str, given: Given) -> Values | None:
    field, value = _stanza_place(given.take("field")), given.take("value")
    old, new = _stanza_place(given.take("from")), _stanza_place(given.take("to"))
    if kind == "add" and field and not isinstance(value, (dict, list)):
        return {"type": "edit", "set": {field: literal(value)}}
    if kind == "remove" and field:
        return {"type": "edit", "remove": [field]}
    if old and new:
        return {"type": "edit", "rename": {old: new}} if kind == "move" else {
            "type": "edit", "set": {new: old}
        }  # fmt: skip
    return None


_BODY_KEY: Final = re.compile(r"body(?:\.(.+)|\[\"(.+)\"\])")


def _stanza_place(field: Any) -> str | None:
    """A field as operators name it; keys of the body are attributes here."""
    if not isinstance(field, str):
        return None
    if field == "body":
        return "body"
    if (found := _BODY_KEY.fullmatch(field)) is not None:
        return attribute(found[1] or found[2])
    group, _, key = field.replace('["', ".").replace('"]', "").partition(".")
    if group in {"attributes", "resource"} and key:
        return attribute(key) if group == "attributes" else f"resource.{key}"
    return None


# Processors.


def _processor(
    draft: Draft, pipeline: str, name: str, given: Given, inputs: list[str]
) -> list[str]:
    """Add what a processor does in a pipeline; returns the parts that records come out of now."""
    kind = name.partition("/")[0]
    if kind in _NEEDLESS or not inputs:
        return inputs
    if kind == "k8sattributes":
        for source in draft.sources.values():
            if source.values["type"] == "file":
                source.values |= {"kubernetes": {}, "service": "from_container"}
        return inputs
    make = _PROCESSORS.get(kind)
    steps, notes = make(given) if make is not None else ([], [])
    if not steps:
        draft.notes += notes or [f"{given.where}: no counterpart; left out: {shown(given.values)}"]
        return inputs
    notes += given.left()
    for number, step in enumerate(steps):
        inputs = [draft.transform(f"{pipeline}_{name}", inputs, step, notes if number == 0 else ())]
    return inputs


Made = tuple[list[Values], list[str]]


def _attributes(group: str) -> Callable[[Given], Made]:
    def make(given: Given) -> Made:
        step: Values = {"type": "edit", "set": {}, "remove": []}
        notes: list[str] = []
        for number, action in enumerate(given.take("actions") or given.take("attributes") or []):
            key, what = str(action.get("key", "")), action.get("action")
            target = attribute(key).replace("attributes", group, 1)
            value = action.get("value")
            source = action.get("from_attribute")
            given_text = literal(value) if source is None else attribute(str(source))
            if what in {"insert", "upsert", "update"} and not isinstance(value, (dict, list)):
                text = {
                    "insert": f"coalesce({target}, {given_text})",
                    "upsert": given_text,
                    "update": f"has({target}) ? {given_text} : null",
                }[what]
                step["set"][target] = text
            elif what == "delete":
                step["remove"].append(target)
            else:
                notes.append(f"{given.where}.{number}: no counterpart: {shown(action)}")
        made = {key: value for key, value in step.items() if value}
        return ([made] if len(made) > 1 else []), notes

    return make


def _filter(given: Given) -> Made:
    given.skip("error_mode")
    terms: list[str] = []
    notes: list[str] = []
    for signal, part in (("logs", "log_record"), ("traces", "span"), ("metrics", "metric")):
        section = given.section(signal)
        for condition in section.take(part, []):
            found = from_ottl(str(condition))
            if found is None:
                notes.append(f"{section.where}.{part}: write it as an expression: {condition}")
            else:
                terms.append(f"!({found})")
        notes += section.left() if signal in given.values else []
    where = " && ".join(terms)
    return ([{"type": "filter", "where": where}] if where else []), notes


_STATEMENT: Final = re.compile(
    r"(set|delete_key)\(\s*(.+?)\s*,\s*(.+?)\s*\)(?:\s+where\s+(.+))?", re.DOTALL
)


def _transform(given: Given) -> Made:
    given.skip("error_mode")
    steps: list[Values] = []
    notes: list[str] = []
    for key in [name for name in given.values if name.endswith("_statements")]:
        for one in given.take(key, []):
            lines = one.get("statements", []) if isinstance(one, dict) else [one]
            for line in lines:
                step = _statement(str(line))
                if step is None:
                    notes.append(f"{given.where}.{key}: {line}")
                else:
                    steps.append(step)
    return steps, notes


_LITERAL: Final = re.compile(r'"[^"\\]*"|-?\d+(\.\d+)?|true|false')


def _statement(line: str) -> Values | None:
    found = _STATEMENT.fullmatch(line.strip())
    if found is None:
        return None
    what, target, value, where = found.groups()
    if what == "delete_key":
        key = ottl_place(f"{target}[{value}]")
        return {"type": "edit", "remove": [key]} if key and where is None else None
    goal = ottl_place(target)
    text = value if _LITERAL.fullmatch(value) else ottl_place(value)
    if goal is None or text is None:
        return None
    if where is not None:
        condition = from_ottl(where)
        if condition is None:
            return None
        text = f"{condition} ? {text} : {goal}"
    return {"type": "edit", "set": {goal: text}}


def _sampler(given: Given) -> Made:
    percentage = float(given.take("sampling_percentage", 100))
    seed = given.take("hash_seed")
    given.skip("mode", "attribute_source", "fail_closed")
    if percentage >= 100:
        return [], []
    return [{
        "type": "sample", "ratio": max(1e-6, percentage / 100), "keep_errors": False,
        "seed": None if seed is None else str(seed),
    }], []  # fmt: skip


def _tail_sampling(given: Given) -> Made:
    rules: list[Values] = []
    notes: list[str] = []
    step: Values = {"type": "tail_sample", "wait_s": seconds(given.take("decision_wait")) or 30}
    step["max_traces"] = given.take("num_traces")
    given.skip("expected_new_traces_per_sec", "decision_cache")
    for policy in given.take("policies", []):
        rule = _policy(Given(policy, f"{given.where}.policies.{policy.get('name')}"))
        if rule is None:
            notes.append(f"{given.where}.policies: no counterpart: {shown(policy)}")
        elif "where" in rule or "min_duration_ms" in rule:
            rules.append(rule)
        else:
            step["ratio"] = rule["ratio"]
    return [{**step, "rules": rules or None}], notes


def _policy(given: Given) -> Values | None:
    """The rule of a policy, or the ratio of all other traces; None: it has no counterpart."""
    kind = str(given.take("type", ""))
    make = _POLICIES.get(kind)
    return None if make is None else make(given.section(kind))


def _status(given: Given) -> Values:
    codes = listed(given.take("status_codes"))
    return {"where": " || ".join(f'status_code == "{code}"' for code in codes)}


def _text_rule(given: Given) -> Values | None:
    if given.take("enabled_regex_matching") or given.take("invert_match"):
        return None
    values = ", ".join(literal(one) for one in listed(given.take("values")))
    return {"where": f"{attribute(str(given.take('key')))} in [{values}]"}


def _number_rule(given: Given) -> Values:
    key = attribute(str(given.take("key")))
    least, most = given.take("min_value", 0), given.take("max_value", 1 << 62)
    return {"where": f"{key} >= {least} && {key} <= {most}"}


_POLICIES: Final[Mapping[str, Callable[[Given], Values | None]]] = {
    "always_sample": lambda _: {"ratio": 1.0},
    "latency": lambda given: {"min_duration_ms": given.take("threshold_ms", 0)},
    "numeric_attribute": _number_rule,
    "probabilistic": lambda given: {"ratio": float(given.take("sampling_percentage", 0)) / 100},
    "status_code": _status,
    "string_attribute": _text_rule,
}


def _detection(given: Given) -> Made:
    detectors = listed(given.take("detectors"))
    given.skip("timeout", "override", "system")
    others = [name for name in detectors if name not in {"system", "env"}]
    notes = [f"{given.where}.detectors: no counterpart: {', '.join(others)}"] if others else []
    return ([{"type": "enrich", "host": True}] if "system" in detectors else []), notes


_PROCESSORS: Final[Mapping[str, Callable[[Given], Made]]] = {
    "attributes": _attributes("attributes"),
    "filter": _filter,
    "probabilistic_sampler": _sampler,
    "resource": _attributes("resource"),
    "resourcedetection": _detection,
    "tail_sampling": _tail_sampling,
    "transform": _transform,
}
