"""Promtail's configuration: its scrapes and their pipelines.

Labels become attributes; the service is the label `job`, or the scrape's name.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from penstock.collector.importing.conditions import (
    attribute,
    checked,
    literal,
    place,
    with_levels,
)
from penstock.collector.importing.draft import (
    EVERY_HOST,
    Draft,
    Given,
    address,
    docker_files,
    seconds,
    shown,
)

Values = dict[str, Any]


def import_promtail(document: Mapping[str, Any]) -> Draft:
    """Rewrite a configuration."""
    draft = Draft("Promtail")
    given = Given(document, "promtail")
    given.skip("server", "positions", "limits_config", "target_config", "global", "tracing")
    for number, _ in enumerate(given.take("clients", [])):
        draft.note(f"clients.{number}", "clients are the router's sinks; see docs/router/sinks.md")
    for number, scrape in enumerate(given.take("scrape_configs", [])):
        section = Given(scrape, f"scrape_configs.{number}")
        _scrape(draft, str(section.take("job_name", f"scrape_{number}")), section)
    draft.notes += given.left()
    return draft


def _scrape(draft: Draft, job: str, given: Given) -> None:
    notes: list[str] = []
    sources = _sources(job, given, notes)
    stages = given.take("pipeline_stages", [])
    for number, one in enumerate(given.take("relabel_configs", [])):
        draft.note(f"{given.where}.relabel_configs.{number}", f"no counterpart: {shown(one)}")
    left = [*notes, *given.left()]
    if not sources:
        draft.notes += left
        draft.note(given.where, f"{job}: there is no such source here")
    for index, (values, labels) in enumerate(sources):
        name = draft.source(job, values, left if index == 0 else ())
        last = name
        if labels:
            step = {"type": "edit", "set": {attribute(k): literal(v) for k, v in labels.items()}}
            last = draft.transform(f"{name}_labels", [last], step)
        for number, stage in enumerate(stages):
            last = _stage(draft, name, last, stage, f"{given.where}.pipeline_stages.{number}")


def _sources(job: str, given: Given, notes: list[str]) -> list[tuple[Values, Values]]:
    """The sources of a scrape, each with its static labels; notes what has no counterpart."""
    found: list[tuple[Values, Values]] = []
    for target in given.take("static_configs", []):
        labels = dict(target.get("labels") or {})
        path, excluded = labels.pop("__path__", None), labels.pop("__path_exclude__", None)
        if path is None:
            continue
        values: Values = {
            "type": "file", "include": [path], "exclude": [excluded] if excluded else None,
            "service": str(labels.pop("job", job)),
        }  # fmt: skip
        found.append((values, labels))
    for key, make in _SCRAPES.items():
        if key in given.values:
            section = given.section(key)
            labels = dict(section.take("labels", {}))
            found.append((make(section), labels))
    for number, one in enumerate(given.take("kubernetes_sd_configs", [])):
        section = Given(one, f"{given.where}.kubernetes_sd_configs.{number}")
        if (role := section.take("role", "pod")) != "pod":
            notes.append(f"{section.where}: role {role}: files are of pods alone")
            continue
        spaces = section.section("namespaces").take("names") or ["*"]
        found.append(({
            "type": "file",
            "include": [
                f"/var/log/pods/{'' if one == '*' else f'{one}_'}*/*/*.log" for one in spaces
            ],
            "format": "cri", "service": "from_container", "kubernetes": {},
        }, {}))  # fmt: skip
        notes += section.left()
    for number, one in enumerate(given.take("docker_sd_configs", [])):
        section = Given(one, f"{given.where}.docker_sd_configs.{number}")
        host = str(section.values.get("host") or "")
        if not host or host.startswith("unix://"):
            section.skip("host")
        section.skip("refresh_interval")
        found.append((docker_files(host), {}))
        notes += section.left()
    return found


def _journal(given: Given) -> Values:
    given.skip("max_age", "path", "json", "matches")
    return {"type": "journald"}


def _syslog(given: Given) -> Values:
    given.skip("idle_timeout", "label_structured_data", "use_incoming_timestamp")
    part = str(given.take("listen_protocol", "tcp"))
    return {"type": "syslog", part: address(given.take("listen_address"), "0.0.0.0:1514")}


def _push(given: Given) -> Values:
    server = given.section("server")
    host = server.take("http_listen_address", EVERY_HOST)
    return {"type": "loki", "listen": f"{host}:{server.take('http_listen_port', 3500)}"}


def _gelf(given: Given) -> Values:
    listen = address(given.take("listen_address"), "0.0.0.0:12201")
    return {"type": "socket", "udp": listen, "codec": "gelf"}


_SCRAPES: Final[Mapping[str, Callable[[Given], Values]]] = {
    "gelf": _gelf,
    "journal": _journal,
    "loki_push_api": _push,
    "syslog": _syslog,
}


# Stages.


def _stage(draft: Draft, source: str, last: str, stage: Any, where: str) -> str:
    """Add what a stage does; returns the part that the records come out of now."""
    for kind, values in stage.items() if isinstance(stage, dict) else [(str(stage), {})]:
        if kind in {"cri", "docker"}:
            draft.sources[source].values["format"] = kind
            continue
        if kind in {"labels", "pack", "structured_metadata"}:
            continue  # what was extracted is an attribute already
        if kind == "multiline":
            _multiline(draft.sources[source].values, values)
            continue
        make = _STAGES.get(kind)
        step = make(values) if make is not None else None
        if step is None:
            draft.note(f"{where}.{kind}", f"no counterpart; left out: {shown(values)}")
        else:
            last = draft.transform(f"{source}_{kind}", [last], step)
    return last


def _multiline(source: Values, values: Mapping[str, Any]) -> None:
    source["multiline"] = {"start": values.get("firstline", "")}
    if (wait := seconds(values.get("max_wait_time"))) is not None:
        source["join_timeout_s"] = wait


def _from(values: Mapping[str, Any]) -> Values:
    source = values.get("source")
    return {} if source in {None, "output"} else {"field": attribute(str(source))}


def _json(values: Mapping[str, Any]) -> Values:
    return {"type": "parse", "format": "json", **_from(values)}


def _logfmt(values: Mapping[str, Any]) -> Values:
    return {"type": "parse", "format": "logfmt", **_from(values)}


def _regex(values: Mapping[str, Any]) -> Values | None:
    pattern = str(values.get("expression", ""))
    return {"type": "parse", "format": "regex", "pattern": pattern, **_from(values)}


_LAYOUTS: Final = {
    "RFC3339": "iso8601", "RFC3339Nano": "iso8601", "RFC1123": "rfc1123", "RFC1123Z": "rfc1123",
    "Unix": "auto", "UnixMs": "auto", "UnixUs": "auto", "UnixNs": "auto", "StampMilli": "rfc3164",
    "Stamp": "rfc3164",
}  # fmt: skip
_GO: Final = (
    ("2006", "%Y"), ("January", "%B"), ("Jan", "%b"), ("Monday", "%A"), ("Mon", "%a"),
    ("MST", "%Z"), ("-07:00", "%z"), ("-0700", "%z"), ("Z07:00", "%z"), (".000000000", ".%f"),
    (".000000", ".%f"), (".000", ".%f"), ("01", "%m"), ("02", "%d"), ("_2", "%e"), ("15", "%H"),
    ("03", "%I"), ("04", "%M"), ("05", "%S"), ("PM", "%p"), ("06", "%y"),
)  # fmt: skip


def _timestamp(values: Mapping[str, Any]) -> Values:
    form = str(values.get("format", ""))
    layout = _LAYOUTS.get(form) or _layout(form)
    zone = values.get("location")
    step: Values = {"type": "timestamp", "field": attribute(str(values.get("source", "time")))}
    return step | {"layouts": [layout], "timezone": zone}


def _layout(form: str) -> str:
    """A layout of Go as one of `strptime`."""
    pattern = "|".join(re.escape(part) for part, _ in _GO)
    known = dict(_GO)
    return re.sub(pattern, lambda found: known[found[0]], form)


def _output(values: Mapping[str, Any]) -> Values:
    return {"type": "edit", "set": {"body": f"coalesce({_source(values)}, body)"}}


def _source(values: Mapping[str, Any]) -> str:
    return attribute(str(values.get("source", "output")))


def _static(values: Mapping[str, Any]) -> Values:
    return {
        "type": "edit",
        "set": {attribute(key): literal(value) for key, value in values.items()},
    }


def _drop_labels(values: Any) -> Values:
    return {"type": "edit", "remove": [attribute(str(name)) for name in values]}


def _drop(values: Mapping[str, Any]) -> Values | None:
    source = values.get("source")
    where = "body" if source is None else place(str(source))
    if values.get("older_than") or values.get("longer_than"):
        return None
    if (pattern := values.get("expression")) is not None:
        term = f"!string({where}).matches({literal(pattern)})"
    elif (value := values.get("value")) is not None:
        term = f"{where} != {literal(value)}"
    else:
        term = f"!has({where})"
    found = checked(with_levels(term))
    return None if found is None else {"type": "filter", "where": found}


def _limit(values: Mapping[str, Any]) -> Values:
    label = values.get("by_label_name")
    return {
        "type": "throttle", "rate": max(0.01, float(values.get("rate", 1))),
        "burst": max(1, int(values.get("burst", 1))),
        "key": attribute(str(label)) if label else None,
        "when_exceeded": "drop" if values.get("drop") else "block",
    }  # fmt: skip


_STAGES: Final[Mapping[str, Callable[[Any], Values | None]]] = {
    "drop": _drop,
    "json": _json,
    "labeldrop": _drop_labels,
    "limit": _limit,
    "logfmt": _logfmt,
    "output": _output,
    "regex": _regex,
    "static_labels": _static,
    "timestamp": _timestamp,
}
