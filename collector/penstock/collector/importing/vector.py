"""Vector's configuration: its common sources and transforms; its sinks belong to the router."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from penstock.collector.importing.conditions import from_vrl, literal, place
from penstock.collector.importing.draft import (
    KINDS,
    Draft,
    Given,
    address,
    docker_files,
    listed,
    shown,
)

Values = dict[str, Any]

_CODECS: Final = {
    "bytes": "text", "json": "json", "gelf": "gelf", "syslog": "text", "vrl": "text",
}  # fmt: skip
_FRAMINGS: Final = {
    "newline_delimited": "newline", "octet_counting": "octet_counted",
    "length_delimited": "length_prefix",
}  # fmt: skip


def import_vector(document: Mapping[str, Any]) -> Draft:
    """Rewrite a configuration, read from YAML, TOML or JSON."""
    draft = Draft("Vector")
    given = Given(document, "vector")
    given.skip("data_dir", "schema", "api", "timezone", "healthchecks", "acknowledgements")
    outputs: dict[str, list[str]] = {}
    for name, section in given.take("sources", {}).items():
        outputs[name] = _source(draft, name, Given(section, f"sources.{name}"))
    waiting = dict(given.take("transforms", {}))
    named = {one for section in waiting.values() for one in listed(section.get("inputs"))}
    for name, inputs in tuple(outputs.items()):
        if inputs and any(f"{name}.{signal}" in named for signal in KINDS):
            parted = draft.part_signals(name, inputs, KINDS)
            outputs |= {f"{name}.{signal}": parts for signal, parts in parted.items()}
    while waiting:
        ready = [
            name for name, section in waiting.items()
            if all(_root(one) not in waiting for one in listed(section.get("inputs")))
        ] or list(waiting)  # fmt: skip
        for name in ready:
            section = Given(waiting.pop(name), f"transforms.{name}")
            _transform(draft, name, section, outputs)
    for name, section in given.take("sinks", {}).items():
        kind = section.get("type") if isinstance(section, dict) else section
        draft.note(f"sinks.{name} ({kind})", "sinks are the router's; see docs/router/sinks.md")
    draft.notes += given.left()
    return draft


def _root(output: str) -> str:
    return output.partition(".")[0]


# Sources.


def _source(draft: Draft, name: str, given: Given) -> list[str]:
    """Add a source; returns the names of what it has become."""
    kind = str(given.take("type", ""))
    make = _SOURCES.get(kind)
    if make is None:
        draft.note(f"{given.where} ({kind})", "there is no such source here")
        return []
    values = make(given)
    if "tls" in given.values:
        values["tls"] = _tls(given.section("tls"))
    if "connection_limit" in given.values and values["type"] != "exec":
        values["max_connections"] = given.take("connection_limit")
    given.skip("keepalive", "host_key", "port_key", "data_dir", "glob_minimum_cooldown_ms")
    # A secret is not shown: the comments go wherever the new configuration goes.
    secrets = [
        f"{given.where}.{key}: write the secret to a file, and here: auth: {{token_file: FILE}}"
        for key in ("token", "valid_tokens", "auth")
        if given.take(key)
    ]
    return [draft.source(name, values, [*secrets, *given.left()])]


def _tls(given: Given) -> Values | None:
    given.skip("enabled", "verify_certificate", "verify_hostname")
    cert, key = given.take("crt_file"), given.take("key_file")
    if not cert or not key:
        return None
    return {"cert_file": cert, "key_file": key} | (
        {"ca_file": given.take("ca_file")} if given.take("ca_file") else {}
    )


def _file(given: Given) -> Values:
    values: Values = {"type": "file", "include": listed(given.take("include"))}
    values["service"] = given.where.partition(".")[2]
    values["exclude"] = listed(given.take("exclude")) or None
    values["start_at"] = given.take("read_from")
    values["ignore_older_s"] = given.take("ignore_older_secs")
    values["remove_after_s"] = given.take("remove_after_secs")
    values["rotate_wait_s"] = given.take("rotate_wait_secs")
    values["max_line_bytes"] = _within(given.take("max_line_bytes"), 1 << 20)
    if "encoding" in given.values:
        values["encoding"] = given.section("encoding").take("charset")
    if "multiline" in given.values:
        values |= _multiline(given.section("multiline"))
    given.skip("fingerprint", "file_key", "max_read_bytes", "oldest_first", "line_delimiter")
    return values


def _within(value: Any, most: int) -> Any:
    return min(value, most) if isinstance(value, int) else value


def _multiline(given: Given) -> Values:
    condition = str(given.take("condition_pattern", ""))
    mode = given.take("mode", "")
    begins = given.take("start_pattern")
    keys = {
        "halt_before": {"start": begins or condition},
        "continue_through": {"continuation": condition},
        "halt_with": {"end": condition},
    }
    timeout = given.take("timeout_ms")
    more: Values = {"join_timeout_s": timeout / 1000} if isinstance(timeout, int) else {}
    return more | ({"multiline": keys[mode]} if mode in keys else {})


def _kubernetes(given: Given) -> Values:
    given.skip("self_node_name", "pod_annotation_fields", "namespace_annotation_fields")
    return {
        "type": "file", "include": ["/var/log/pods/*/*/*.log"], "format": "cri",
        "service": "from_container", "kubernetes": {}, "start_at": given.take("read_from"),
        "ignore_older_s": given.take("ignore_older_secs"),
        "exclude": listed(given.take("exclude_paths_glob_patterns")) or None,
    }  # fmt: skip


def _docker(given: Given) -> Values:
    host = str(given.values.get("docker_host") or "")
    if not host or host.startswith(("unix://", "/")):
        given.skip("docker_host")
    given.skip("auto_partial_merge", "partial_event_marker_field", "retry_backoff_secs")
    values = docker_files(host)
    return values | (_multiline(given.section("multiline")) if "multiline" in given.values else {})


def _syslog(given: Given) -> Values:
    mode = given.take("mode", "tcp")
    length = given.take("max_length")
    most = max(480, min(length, 64 * 1024)) if isinstance(length, int) else None
    values: Values = {"type": "syslog", "max_message_bytes": most}
    if mode == "unix":
        return {**values, "path": given.take("path")}
    return {**values, mode: address(given.take("address"), "0.0.0.0:514")}


def _socket(given: Given) -> Values:
    mode = str(given.take("mode", "tcp"))
    values: Values = {"type": "socket"}
    if mode.startswith("unix"):
        values |= {"path": given.take("path"), "path_type": mode.partition("_")[2] or "datagram"}
    else:
        values[mode] = address(given.take("address"), "0.0.0.0:9000")
    values["codec"] = _codec(given.section("decoding"))
    if "framing" in given.values and mode in {"tcp", "unix_stream"}:
        values["framing"] = _framing(given.section("framing"))
    length = given.take("max_length")
    values["max_message_bytes"] = max(480, min(length, 1 << 20)) if length else None
    given.skip("host_key", "port_key", "shutdown_timeout_secs")
    return values


def _codec(given: Given) -> str:
    return _CODECS.get(str(given.take("codec", "bytes")), "text")


def _framing(given: Given) -> str | None:
    method = str(given.take("method", ""))
    if method == "character_delimited":
        delimiter = given.section("character_delimited").take("delimiter", "")
        return "nul" if delimiter == "\0" else "newline"
    return _FRAMINGS.get(method)


def _listening(kind: str, default: str) -> Callable[[Given], Values]:
    return lambda given: {"type": kind, "listen": address(given.take("address"), default)}


def _http(given: Given) -> Values:
    given.skip("encoding", "decoding", "framing", "method", "path_key", "response_code")
    return {
        "type": "http", "listen": address(given.take("address"), "0.0.0.0:8080"),
        "path": given.take("path"),
    }  # fmt: skip


def _otlp(given: Given) -> Values:
    values: Values = {"type": "otlp"}
    for part, default in (("grpc", "0.0.0.0:4317"), ("http", "0.0.0.0:4318")):
        values[part] = address(given.section(part).take("address"), default)
    return values


def _statsd(given: Given) -> Values:
    mode = str(given.take("mode", "udp"))
    listen = address(given.take("address"), "0.0.0.0:8125")
    return {"type": "statsd", mode: listen}


def _journald(given: Given) -> Values:
    given.skip("current_boot_only", "journal_directory", "batch_size")
    start = "end" if given.take("since_now") else None
    return {
        "type": "journald", "units": listed(given.take("include_units")) or None, "start_at": start
    }  # fmt: skip


def _exec(given: Given) -> Values:
    scheduled = given.section("scheduled").take("exec_interval_secs")
    given.skip("include_stderr", "decoding", "framing", "streaming")
    mode = given.take("mode", "scheduled")
    return {
        "type": "exec", "command": listed(given.take("command")),
        "service": given.where.partition(".")[2],
        "interval_s": (scheduled or 60) if mode == "scheduled" else None,
    }  # fmt: skip


_SOURCES: Final[Mapping[str, Callable[[Given], Values]]] = {
    "datadog_agent": _listening("datadog", "0.0.0.0:8282"),
    "docker_logs": _docker,
    "exec": _exec,
    "file": _file,
    "fluent": _listening("forward", "0.0.0.0:24224"),
    "host_metrics": lambda given: {
        "type": "host_metrics", "interval_s": given.take("scrape_interval_secs")
    },
    "http": _http,
    "http_server": _http,
    "journald": _journald,
    "kubernetes_logs": _kubernetes,
    "opentelemetry": _otlp,
    "prometheus_remote_write": _listening("prometheus_remote_write", "0.0.0.0:9201"),
    "prometheus_scrape": lambda given: {
        "type": "prometheus", "targets": listed(given.take("endpoints")),
        "interval_s": given.take("scrape_interval_secs"),
        "timeout_s": given.take("scrape_timeout_secs"),
    },
    "socket": _socket,
    "splunk_hec": _listening("splunk_hec", "0.0.0.0:8088"),
    "statsd": _statsd,
    "stdin": lambda _: {"type": "stdin"},
    "syslog": _syslog,
}  # fmt: skip


# Transforms.


def _transform(draft: Draft, name: str, given: Given, outputs: dict[str, list[str]]) -> None:
    """Add a transform, in as many steps as it takes; one without a counterpart is left out."""
    inputs = [new for old in listed(given.take("inputs")) for new in _inputs(draft, old, outputs)]
    kind = str(given.take("type", ""))
    make = _TRANSFORMS.get(kind)
    if not inputs:
        draft.note(f"{given.where} ({kind})", "none of its inputs has a counterpart")
        outputs[name] = []
        return
    if make is None:
        draft.note(f"{given.where} ({kind})", f"no counterpart; left out: {shown(given.values)}")
        outputs[name] = inputs
        return
    steps, notes = make(given)
    notes += given.left()
    if not steps:
        draft.notes += notes or [f"{given.where} ({kind}): no counterpart; left out"]
        outputs[name] = inputs
        return
    for number, values in enumerate(steps):
        inputs = [draft.transform(name, inputs, values, notes if number == 0 else ())]
    outputs[name] = inputs
    if steps[-1]["type"] == "route":
        outputs |= {f"{name}.{part}": [f"{inputs[0]}.{part}"] for part in steps[-1]["routes"]}
        outputs[f"{name}._unmatched"] = [f"{inputs[0]}.unmatched"]


def _inputs(draft: Draft, old: str, outputs: Mapping[str, list[str]]) -> list[str]:
    """What an input has become; `*` at its end stands for any characters."""
    if old in outputs:
        return outputs[old]
    found = [
        one for name, new in outputs.items() if old.endswith("*") and name.startswith(old[:-1])
        for one in new
    ]  # fmt: skip
    if not found:
        draft.note(old, "no source or transform here has become of this input")
    return found


Steps = tuple[list[Values], list[str]]


def _condition(given: Given, key: str) -> tuple[str | None, list[str]]:
    """A condition and the comments on it; None: it cannot be translated."""
    value = given.take(key)
    if isinstance(value, dict):
        value = value.get("source", "") if value.get("type", "vrl") == "vrl" else ""
    text = str(value or "")
    found = from_vrl(text) if text else None
    return found, [] if found else [f"{given.where}.{key}: write it as an expression: {text}"]


def _filter(given: Given) -> Steps:
    where, notes = _condition(given, "condition")
    return ([{"type": "filter", "where": where}] if where else []), notes


def _sample(given: Given) -> Steps:
    rate = given.take("rate")
    ratio = given.take("ratio") or (1 / rate if isinstance(rate, (int, float)) and rate else None)
    values: Values = {"type": "sample", "ratio": ratio, "keep_errors": False}
    notes: list[str] = []
    if "exclude" in given.values:
        values["keep"], notes = _condition(given, "exclude")
    return ([values] if ratio else []), notes


_TEMPLATE: Final = re.compile(r"\{\{\s*([^{}]+?)\s*\}\}\Z")


def _throttle(given: Given) -> Steps:
    threshold, window = given.take("threshold", 1), given.take("window_secs", 1)
    key = _TEMPLATE.match(str(given.take("key_field", "")))
    if not isinstance(threshold, (int, float)) or not isinstance(window, (int, float)):
        return [], []
    return [{
        "type": "throttle", "rate": max(0.01, threshold / max(window, 0.001)),
        "burst": max(1, int(threshold)), "key": place(key[1]) if key else None,
    }], []  # fmt: skip


def _dedupe(given: Given) -> Steps:
    fields = listed(given.section("fields").take("match"))
    size = given.section("cache").take("num_events")
    return [{"type": "dedupe", "key": _key(fields), "max_keys": size}], []


def _key(fields: list[str]) -> str | None:
    """An expression whose value is the same where all fields are."""
    texts = [f'coalesce(string({place(name)}), "")' for name in fields]
    if len(texts) == 1:
        return place(fields[0])
    return ' + "\\n" + '.join(texts) or None


_STRATEGIES: Final = {
    "array": "list", "concat": "concat", "concat_newline": "concat", "max": "max", "min": "min",
    "retain": "last", "sum": "sum", "discard": None,
}  # fmt: skip


def _reduce(given: Given) -> Steps:
    ends, notes = _condition(given, "ends_when") if "ends_when" in given.values else (None, [])
    merge: Values = {}
    for name, strategy in given.take("merge_strategies", {}).items():
        found = _STRATEGIES.get(strategy, "")
        if found == "":
            notes.append(f"{given.where}.merge_strategies.{name}: no counterpart: {strategy}")
        elif found:
            merge[place(name)] = found
    separators = {"concat": " ", "concat_newline": "\n"}
    used = {separators[one] for one in given.take("merge_strategies", {}).values()
            if one in separators}  # fmt: skip
    window = given.take("expire_after_ms", 30_000)
    most = given.take("max_events")
    return [{
        "type": "reduce", "key": _key(listed(given.take("group_by"))) or literal("all"),
        "merge": merge or None, "separator": used.pop() if len(used) == 1 else None,
        "window_s": window / 1000, "ends_when": ends, "max_records": most,
    }], notes  # fmt: skip


def _route(given: Given) -> Steps:
    routes: Values = {}
    notes: list[str] = []
    branches = given.section("route")
    for name in branches.values:
        where, found = _condition(branches, name)
        notes += found
        routes[name] = {"where": where or "false"}
    return ([{"type": "route", "routes": routes}] if routes else []), notes


def _log_to_metric(given: Given) -> Steps:
    steps: list[Values] = []
    notes: list[str] = []
    metrics = given.take("metrics", [])
    for number, metric in enumerate(metrics):
        one = Given(metric, f"{given.where}.metrics.{number}")
        kind, name = one.take("type"), one.take("name") or one.take("field")
        if kind not in {"counter", "histogram"} or steps:
            notes.append(f"{one.where}: write a separate `logs_to_metrics`: {shown(metric)}")
            continue
        tags = one.take("tags", {})
        value = place(str(one.take("field"))) if kind == "histogram" else None
        if kind == "counter" and one.take("increment_by_value"):
            value = place(str(one.take("field")))
        steps.append({
            "type": "logs_to_metrics", "name": name, "metric": kind, "value": value,
            "dimensions": {
                key: place(found[1]) if (found := _TEMPLATE.match(str(text))) else literal(text)
                for key, text in tags.items()
            } or None,
        })  # fmt: skip
        notes += one.left()
    return steps, notes


# Programs in VRL: statements that a transform of ours does; others stay as comments.

_PARSERS: Final[Mapping[str, Values]] = {
    "parse_json": {"type": "parse", "format": "json"},
    "parse_syslog": {"type": "parse", "format": "syslog"},
    "parse_logfmt": {"type": "parse", "format": "logfmt"},
    "parse_key_value": {"type": "parse", "format": "key_value"},
    "parse_common_log": {"type": "parse", "format": "clf"},
    "parse_apache_log": {"type": "parse", "format": "clf"},
    "parse_nginx_log": {"type": "parse", "format": "clf"},
    "parse_cef": {"type": "parse", "format": "cef"},
    "parse_xml": {"type": "xml"},
    "parse_url": {"type": "url"},
    "parse_user_agent": {"type": "user_agent"},
}
_PARSE: Final = re.compile(
    r"(?:\.|\.[\w.]+|[\w, ]+)\s*\|?=\s*(?:object!?\()?(parse_\w+)!?\(\s*(?:string!?\(\s*)?"
    r"(\.[\w.@]+)\s*\)?\s*(?:,\s*(.*?))?\s*\)+(?:\s*\?\?\s*\{\s*\})?"
)
_SET: Final = re.compile(r"(\.[\w.@]+)\s*=\s*(\"(?:[^\"\\]|\\.)*\"|-?\d+(?:\.\d+)?|true|false)")
_COPY: Final = re.compile(r"(\.[\w.@]+)\s*=\s*(del\(\s*)?(\.[\w.@]+)(?(2)\s*\))")
_DELETE: Final = re.compile(r"del\(\s*(\.[\w.@]+)\s*\)")
_LITERAL: Final = re.compile(r"r?(['\"])(.*)\1", re.DOTALL)


def _remap(given: Given) -> Steps:
    steps: list[Values] = []
    notes: list[str] = []
    for line in map(str.strip, re.split(r"[\n;]", str(given.take("source", "")))):
        if not line or line.startswith("#"):
            continue
        step = _statement(line)
        if step is None:
            notes.append(f"{given.where}.source: {line}")
        elif steps and steps[-1]["type"] == step["type"] == "edit" and not _clash(steps[-1], step):
            for key in step.keys() - {"type"}:
                known = steps[-1].get(key)
                steps[-1][key] = step[key] if known is None else _joined(known, step[key])
        else:
            steps.append(step)
    given.skip("drop_on_error", "drop_on_abort", "reroute_dropped", "file")
    return steps, notes


def _joined(known: Any, more: Any) -> Any:
    return known + more if isinstance(known, list) else {**known, **more}


def _clash(before: Values, step: Values) -> bool:
    """Return whether one edit would do two things in another order than two edits do."""
    places = {*before.get("rename", {}).values(), *before.get("set", {}), *before.get("remove", [])}
    return "rename" in step or bool(places & {*step.get("remove", []), *step.get("set", {})})


def _statement(line: str) -> Values | None:
    if (found := _PARSE.fullmatch(line)) is not None:
        return _parser(found[1], place(found[2]), found[3] or "")
    if (found := _SET.fullmatch(line)) is not None:
        return {"type": "edit", "set": {place(found[1]): found[2]}}
    if (found := _COPY.fullmatch(line)) is not None:
        if found[2]:
            return {"type": "edit", "rename": {place(found[3]): place(found[1])}}
        return {"type": "edit", "set": {place(found[1]): place(found[3])}}
    if (found := _DELETE.fullmatch(line)) is not None:
        return {"type": "edit", "remove": [place(found[1])]}
    return None


def _parser(function: str, field: str, rest: str) -> Values | None:
    own = {} if field == "body" else {"field": field}
    if known := _PARSERS.get(function):
        needs_field = known["type"] in {"url", "user_agent"}
        return {**known, **({"field": field} if needs_field else own)}
    text = _LITERAL.match(rest)
    if text is None:
        return None
    if function == "parse_regex":
        pattern = text[2].replace("(?<", "(?P<")
        return {"type": "parse", "format": "regex", "pattern": pattern, **own}
    if function == "parse_grok":
        return {"type": "grok", "patterns": [text[2]], **own}
    return None


_TRANSFORMS: Final[Mapping[str, Callable[[Given], Steps]]] = {
    "dedupe": _dedupe,
    "filter": _filter,
    "log_to_metric": _log_to_metric,
    "reduce": _reduce,
    "remap": _remap,
    "route": _route,
    "sample": _sample,
    "throttle": _throttle,
}
