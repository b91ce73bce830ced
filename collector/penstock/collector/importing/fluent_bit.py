"""Fluent Bit's configuration, classic or YAML: its inputs, filters and parsers.

A filter there takes the records of the inputs whose tag its `Match` fits, one filter after the
other; here each becomes a transform behind those, and one for each group of inputs that later
filters tell apart.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

from penstock.collector.importing.conditions import (
    attribute,
    checked,
    literal,
    place,
    with_levels,
)
from penstock.collector.importing.draft import EVERY_HOST, Draft, Given, listed, seconds, size_bytes

Values = dict[str, Any]
Section = tuple[str, Values]

_HEAD: Final = re.compile(r"\[\s*([A-Za-z_]+)\s*\]\Z")
_INCLUDES: Final = ("@include", "@set")


def read_classic(text: str) -> list[Section]:
    """The sections of a classic file, in order; of a key that is repeated all values.

    Raises:
        ValueError: A line is no section, and no key of one.
    """
    found: list[Section] = []
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        if (head := _HEAD.match(stripped)) is not None:
            found.append((head[1].upper(), {}))
            continue
        key, _, value = stripped.partition(" ")
        if key.lower() in _INCLUDES:
            found.append(("INCLUDE", {"line": stripped}))
        elif not found:
            raise ValueError(f"line {number}: a key stands before the first section")
        else:
            _add(found[-1][1], key, value.strip())
    return found


def sections_of(document: Mapping[str, Any]) -> list[Section]:
    """The same of a configuration in YAML."""
    found: list[Section] = [("SERVICE", dict(document.get("service") or {}))]
    found += [("INCLUDE", {"line": str(one)}) for one in document.get("includes") or []]
    for name in ("parsers", "multiline_parsers"):
        kind = name.removesuffix("s").upper()
        found += [(kind, _lowered(one)) for one in document.get(name) or []]
    pipeline = document.get("pipeline") or {}
    for name in ("inputs", "filters", "outputs"):
        kind = name.removesuffix("s").upper()
        found += [(kind, _lowered(one)) for one in pipeline.get(name) or []]
    return found


def _add(values: Values, key: str, value: Any) -> None:
    key = key.lower()
    known = values.get(key)
    if known is None:
        values[key] = value
    else:
        values[key] = [*known, value] if isinstance(known, list) else [known, value]


def _lowered(values: Mapping[str, Any]) -> Values:
    return {str(key).lower(): value for key, value in values.items()}


def import_fluent_bit(sections: list[Section]) -> Draft:
    """Rewrite a configuration."""
    draft = Draft("Fluent Bit")
    parsers = {str(values.get("name", "")): values for kind, values in sections if kind == "PARSER"}
    tagged: list[tuple[str, str]] = []
    """The tag of each input, and the part that its records come out of now."""
    counts: dict[str, int] = {}
    filters = [values for kind, values in sections if kind == "FILTER"]
    for kind, values in sections:
        plugin = str(values.get("name", ""))
        counts[kind] = counts.get(kind, 0) + 1
        given = Given(values, f"[{kind}] {counts[kind]} {plugin}".strip())
        given.skip("name", "alias", "log_level", "match", "tag", "match_regex")
        match kind:
            case "INPUT":
                if (name := _input(draft, plugin, given, parsers)) is not None:
                    tagged.append((str(values.get("tag") or f"{plugin}.0"), name))
            case "FILTER":
                tagged = _filter(draft, plugin, given, parsers, tagged, filters[counts[kind] :])
            case "OUTPUT":
                draft.note(given.where, "outputs are the router's sinks; see docs/router/sinks.md")
            case "INCLUDE":
                draft.note(values["line"], "import that file by itself")
            case "MULTILINE_PARSER":
                draft.note(given.where, "write `multiline` at its source")
            case _:
                pass
    return draft


# Inputs.


def _input(draft: Draft, plugin: str, given: Given, parsers: Mapping[str, Values]) -> str | None:
    """Add a source; returns the name of the last part that its records pass."""
    make = _INPUTS.get(plugin)
    if make is None:
        draft.note(given.where, "there is no such source here")
        return None
    values = make(given)
    given.skip("mem_buf_limit", "db", "db.sync", "db.locking", "storage.type", "threaded",
               "refresh_interval", "skip_long_lines", "buffer_chunk_size", "path_key")  # fmt: skip
    parser = given.take("parser")
    tag = str(given.values.get("tag") or plugin)
    name = draft.source(tag.replace("*", "").strip(".") or plugin, values, ())
    steps: list[Values] = []
    notes: list[str] = []
    if parser and values["type"] != "syslog":
        steps, notes = _parse_steps(str(parser), "body", parsers, name)
    draft.sources[name].notes += [*given.left(), *notes]
    for step in steps:
        name = draft.transform(f"{name}_parse", [name], step)
    return name


_FORMATS: Final = {"docker": "docker", "cri": "cri"}


def _tail(given: Given) -> Values:
    values: Values = {"type": "file", "include": listed(given.take("path"))}
    values["service"] = str(given.values.get("tag", "")).strip("*.") or "file"
    values["exclude"] = listed(given.take("exclude_path")) or None
    if str(given.take("read_from_head", "off")).lower() in {"off", "false"}:
        values["start_at"] = "end"
    ignored = given.take("ignore_older")
    values["ignore_older_s"] = seconds(ignored) if ignored else None
    values["rotate_wait_s"] = seconds(given.take("rotate_wait"))
    size = size_bytes(given.take("buffer_max_size"))
    values["max_line_bytes"] = None if size is None else max(64, min(size, 1 << 20))
    presets: list[str] = []
    for name in listed(given.take("multiline.parser")):
        if name in _FORMATS:
            values["format"] = _FORMATS[name]
        else:
            presets.append(name)
    known = [name for name in presets if name in {"go", "java", "python", "ruby", "dotnet"}]
    if known:
        values["multiline"] = {"extends": known if len(known) > 1 else known[0]}
    if given.values.get("parser") in _FORMATS:
        values["format"] = _FORMATS[given.take("parser")]
        del given.values["parser"]
    if str(given.take("docker_mode", "off")).lower() == "on":
        values["format"] = "docker"
    return values


def _systemd(given: Given) -> Values:
    units = [
        one.partition("=")[2] for one in listed(given.take("systemd_filter"))
        if one.startswith("_SYSTEMD_UNIT=")
    ]  # fmt: skip
    given.skip("path", "strip_underscores", "max_entries", "lowercase")
    tail = str(given.take("read_from_tail", "off")).lower() in {"on", "true"}
    return {"type": "journald", "units": units or None, "start_at": "end" if tail else None}


def _listen(given: Given, port: int) -> str:
    return f"{given.take('listen', EVERY_HOST)}:{given.take('port', port)}"


def _syslog(given: Given) -> Values:
    mode = str(given.take("mode", "unix_udp"))
    given.skip("parser")
    if mode.startswith("unix"):
        return {"type": "syslog", "path": given.take("path")}
    return {"type": "syslog", mode: _listen(given, 5140)}


def _socket(part: str) -> Callable[[Given], Values]:
    def make(given: Given) -> Values:
        codec = "text" if given.take("format", "json") == "none" else "json"
        given.skip("separator", "buffer_size")
        return {"type": "socket", part: _listen(given, 5170), "codec": codec}

    return make


def _at(kind: str, port: int) -> Callable[[Given], Values]:
    return lambda given: {"type": kind, "listen": _listen(given, port)}


def _otlp(given: Given) -> Values:
    return {"type": "otlp", "http": _listen(given, 4318)}


def _host_metrics(given: Given) -> Values:
    interval = given.take("interval_sec") or given.take("scrape_interval")
    given.skip("interval_nsec")
    return {"type": "host_metrics", "interval_s": seconds(interval)}


def _exec(given: Given) -> Values:
    command = given.take("command", "true")
    interval = seconds(given.take("interval_sec", 60))
    given.skip("interval_nsec")
    return {
        "type": "exec", "command": ["sh", "-c", command], "interval_s": interval,
        "service": str(given.values.get("tag") or "exec"),
    }  # fmt: skip


def _kubernetes_events(given: Given) -> Values:
    given.skip("interval_sec", "interval_nsec", "kube_request_limit", "kube_retention_time")
    url = str(given.take("kube_url", ""))
    verify = str(given.take("tls.verify", "on")).lower()
    space = given.take("kube_namespace")
    return {
        "type": "kubernetes_events",
        "server": url.rstrip("/") or None,
        "token_file": given.take("kube_token_file"),
        "ca_file": given.take("kube_ca_file"),
        "verify": None if verify in {"on", "true"} else False,
        "namespaces": [space] if space else None,
    }


def _scrape(given: Given) -> Values:
    host, port = given.take("host", "127.0.0.1"), given.take("port", 9090)
    return {
        "type": "prometheus",
        "targets": [f"http://{host}:{port}{given.take('metrics_path', '/metrics')}"],
        "interval_s": seconds(given.take("scrape_interval")),
    }


_INPUTS: Final[Mapping[str, Callable[[Given], Values]]] = {
    **dict.fromkeys(("cpu", "disk", "mem", "netif", "node_exporter_metrics"), _host_metrics),
    "elasticsearch": _at("elasticsearch", 9200),
    "exec": _exec,
    "forward": _at("forward", 24224),
    "http": _at("http", 9880),
    "kubernetes_events": _kubernetes_events,
    "opentelemetry": _otlp,
    "prometheus_remote_write": _at("prometheus_remote_write", 8080),
    "prometheus_scrape": _scrape,
    "splunk": _at("splunk_hec", 8088),
    "statsd": lambda given: {"type": "statsd", "udp": _listen(given, 8125)},
    "stdin": lambda _: {"type": "stdin"},
    "syslog": _syslog,
    "systemd": _systemd,
    "tail": _tail,
    "tcp": _socket("tcp"),
    "udp": _socket("udp"),
}


# Parsers.

_KNOWN: Final[Mapping[str, Values]] = {
    "json": {"type": "parse", "format": "json"},
    "docker": {"type": "parse", "format": "json"},
    "apache": {"type": "parse", "format": "clf"},
    "apache2": {"type": "parse", "format": "clf"},
    "nginx": {"type": "parse", "format": "clf"},
    "logfmt": {"type": "parse", "format": "logfmt"},
    "syslog-rfc5424": {"type": "parse", "format": "syslog"},
    "syslog-rfc3164": {"type": "parse", "format": "syslog"},
}
"""Parsers that Fluent Bit brings in its `parsers.conf`."""
_TYPES: Final = {
    "integer": "int", "float": "double", "bool": "bool", "string": "string", "hex": "string"
}  # fmt: skip


def _parse_steps(
    name: str, field: str, parsers: Mapping[str, Values], where: str
) -> tuple[list[Values], list[str]]:
    """The transforms of a parser, and comments on it."""
    own = {} if field == "body" else {"field": field}
    if name not in parsers:
        known = _KNOWN.get(name)
        if known is None:
            return [], [f"{where}: the parser {name} is in another file; write a `parse`"]
        return [{**known, **own}], []
    given = Given(parsers[name], f"[PARSER] {name}")
    given.skip("name", "time_keep", "time_offset", "time_strict", "skip_empty_values")
    step: Values = {"type": "parse", "format": given.take("format", "json"), **own}
    if step["format"] == "regex":
        step["pattern"] = str(given.take("regex", "")).replace("(?<", "(?P<")
    elif step["format"] == "ltsv":
        step |= {"format": "key_value", "pair_separator": "\t", "value_separator": ":"}
    types = {
        key: _TYPES[kind] for key, _, kind in (
            one.partition(":") for one in str(given.take("types", "")).split()
        ) if kind in _TYPES
    }  # fmt: skip
    step["types"] = types or None
    steps = [step]
    key, layout = given.take("time_key"), given.take("time_format")
    if key:
        layouts = None if layout is None else [_layout(str(layout))]
        steps.append({"type": "timestamp", "field": attribute(str(key)), "layouts": layouts})
    return steps, given.left()


_LAYOUT: Final = re.compile(r"%([LTFDR])")
_EXPANDED: Final = {
    "L": "%f", "T": "%H:%M:%S", "F": "%Y-%m-%d", "D": "%m/%d/%y", "R": "%H:%M"
}  # fmt: skip


def _layout(text: str) -> str:
    """A layout of times without the directives that stand for several."""
    return _LAYOUT.sub(lambda found: _EXPANDED[found[1]], text)


# Filters.

Tagged = list[tuple[str, str]]


def _filter(
    draft: Draft,
    plugin: str,
    given: Given,
    parsers: Mapping[str, Values],
    tagged: Tagged,
    later: Sequence[Values],
) -> Tagged:
    """Add a filter behind every input that it fits; returns the parts with what comes out now."""
    fits = [name for tag, name in tagged if _is_for(given.values, tag)]
    if not fits:
        key = "match_regex" if "match_regex" in given.values else "match"
        text = f"{key.title()} {given.values.get(key, '*')}"
        draft.note(given.where, f"{text} fits no input that was taken over")
        return tagged
    if plugin == "kubernetes":
        for name in fits:
            source = draft.sources.get(name)
            if source is not None and source.values["type"] == "file":
                source.values |= {"kubernetes": {}, "service": "from_container"}
        given.skip(*given.values)
        return tagged
    make = _FILTERS.get(plugin)
    steps, notes = make(given, parsers) if make is not None else ([], [])
    if not steps:
        reason = "; ".join(notes) or f"no counterpart; left out: {given.values}"
        draft.note(given.where, reason)
        return tagged
    notes += given.left()
    groups: dict[tuple[bool, ...], list[str]] = {}
    for tag, name in tagged:
        if name in fits:
            changing = (one for one in later if str(one.get("name", "")) in _FILTERS)
            alike = groups.setdefault(tuple(_is_for(one, tag) for one in changing), [])
            alike += [] if name in alike else [name]
    behind: dict[str, str] = {}
    for inputs in groups.values():
        last = inputs
        for step in steps:
            last = [draft.transform(plugin, last, step, notes)]
            notes = []
        behind |= dict.fromkeys(inputs, last[0])
    return [(tag, behind.get(name, name)) for tag, name in tagged]


def _is_for(values: Values, tag: str) -> bool:
    """Return whether a filter takes the records of a tag."""
    pattern = values.get("match_regex")
    if pattern is None:
        return fnmatchcase(tag, str(values.get("match") or "*"))
    try:
        return re.search(str(pattern), tag) is not None
    except re.error:
        return False


Made = tuple[list[Values], list[str]]


def _grep(given: Given, _parsers: Mapping[str, Values]) -> Made:
    terms: list[str] = []
    notes: list[str] = []
    for key, sign in (("regex", ""), ("exclude", "!")):
        for rule in _several(given.take(key)):
            name, _, pattern = rule.partition(" ")
            found = f"{sign}string({place(name)}).matches({literal(pattern.strip())})"
            term = checked(with_levels(found))
            if term is None:
                notes.append(f"{given.where}.{key}: write it as an expression: {rule}")
            else:
                terms.append(term)
    joined = " || " if str(given.take("logical_op", "legacy")).lower() == "or" else " && "
    return ([{"type": "filter", "where": joined.join(terms)}] if terms else []), notes


def _several(value: Any) -> list[str]:
    if value is None:
        return []
    return [str(one) for one in value] if isinstance(value, list) else [str(value)]


def _modify(given: Given, _parsers: Mapping[str, Values]) -> Made:
    step: Values = {"type": "edit", "rename": {}, "set": {}, "remove": []}
    for key in ("add", "set", "record"):
        for rule in _pairs(given.take(key)):
            name, _, value = rule.partition(" ")
            known = f"coalesce({place(name)}, {literal(value.strip())})"
            step["set"][place(name)] = known if key == "add" else literal(value.strip())
    for key in ("rename", "hard_rename"):
        for rule in _pairs(given.take(key)):
            old, _, new = rule.partition(" ")
            step["rename"][place(old)] = place(new.strip())
    for key in ("remove", "remove_key"):
        step["remove"] += [place(name) for name in _several(given.take(key))]
    for key in ("remove_wildcard",):
        step["remove"] += [f"attributes.{name}*" for name in _several(given.take(key))]
    made = {key: value for key, value in step.items() if value}
    return ([made] if len(made) > 1 else []), []


def _pairs(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [f"{key} {one}" for key, one in value.items()]
    return _several(value)


def _parser(given: Given, parsers: Mapping[str, Values]) -> Made:
    field = place(str(given.take("key_name", "log")))
    given.skip("reserve_data", "preserve_key")
    steps: list[Values] = []
    notes: list[str] = []
    for name in _several(given.take("parser")):
        if steps:
            notes.append(f"{given.where}.parser: {name}: one parser a transform")
            continue
        steps, notes = _parse_steps(name, field, parsers, given.where)
    return steps, notes


def _throttle(given: Given, _parsers: Mapping[str, Values]) -> Made:
    rate, interval = float(given.take("rate", 1)), seconds(given.take("interval", "1s")) or 1
    given.skip("window", "print_status")
    return [{"type": "throttle", "rate": max(0.01, rate / interval)}], []


def _geoip(given: Given, _parsers: Mapping[str, Values]) -> Made:
    keys = _several(given.take("lookup_key"))
    given.skip("record")
    notes = [f"{given.where}.record: attributes have the names of `geoip`"]
    database = given.take("database")
    return [{"type": "geoip", "field": place(key), "database": database} for key in keys], notes


_FILTERS: Final[Mapping[str, Callable[[Given, Mapping[str, Values]], Made]]] = {
    "geoip2": _geoip,
    "grep": _grep,
    "modify": _modify,
    "parser": _parser,
    "record_modifier": _modify,
    "throttle": _throttle,
}
