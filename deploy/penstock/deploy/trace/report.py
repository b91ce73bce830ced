"""A trace for people: a block for each record, a line for each sink."""

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from penstock.base.pluralize import pluralize
from penstock.deploy.trace.explain import Origin, RecordTrace, Trace

_VALUES_MAX: Final = 6
"""Values of a condition's columns that are shown; `--json` has all."""

_ID: Final = re.compile(r"[0-9a-fA-F]{32}|[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def report(trace: Trace) -> Iterator[str]:
    """The lines of a trace."""
    for record in trace.records:
        yield from _record(record)
        yield ""
    if not trace.records:
        yield f"no record found; {pluralize(trace.looked_at, 'record', form=',')} looked at"
    if trace.is_cut:
        yield f"the search ended at {pluralize(len(trace.records), 'record')}: --limit shows more"
    yield from map(edge_text, trace.edges)
    for one in trace.unknown_ids:
        hint = "" if _ID.fullmatch(one) else "; an id has 32 hexadecimal digits"
        yield f"{one}: no record that was found has it, and no collector knows it{hint}"
    yield from (f"not known which: {it.sentence}" for it in trace.applications)
    for name, state in trace.stopped.items():
        yield f"{name}: {state}"
    for name, reason in trace.silent.items():
        yield f"{name} could not be asked: {reason}"


def _record(trace: RecordTrace) -> Iterator[str]:
    record, fields = trace.record, trace.record.fields()
    ids = [f"{key[:-3]} {fields[key]}" for key in ("trace_id", "record_id") if fields.get(key)]
    time = [] if record.timestamp_ns is None else [time_text(record.timestamp_ns)]
    yield "  ".join(filter(None, [record.position, record.subject, *time, *ids]))
    if record.missing:
        yield f"  {record.missing}"
    yield f"  came in: {_origin(trace.origin)}"
    if not trace.sinks:
        yield "  no job that was asked reads this stream"
    width = max((len(_name(it)) for it in trace.sinks), default=0)
    for verdict in trace.sinks:
        fate = str(verdict["fate"]).replace("_", " ")
        yield f"  {_name(verdict):<{width}}  {fate:<12}  {'; '.join(sentences(verdict))}".rstrip()


def edge_text(edge: Mapping[str, Any]) -> str:
    """What a collector says of a record that it dropped or has in quarantine, in a line.

    It may be in the log all the same: a kill lets what `throttle` or `dedupe` dropped pass the
    second time, and what was in quarantine may be put back.
    """
    collector = edge["collector"]
    if edge["fate"] == "unrecorded":
        return (
            f"{collector} dropped {edge['records']:,} more in that time and has no record of them"
        )
    service = edge["service"] or "no service"
    place = "a record with its record id is in the log" if edge.get("in_log") else "not in the log"
    source = f"{collector}, source {edge['source']}, {service}"
    about = f"{place}: {time_text(edge['time_ns'])}, {source}"
    if edge["fate"] == "dropped":
        return f"{about}: {edge['reason']} by {edge['step']}: {edge['text']}"
    replayed = ", put back since" if edge["replayed"] else ""
    return f"{about}: in quarantine{replayed}: {edge['reason']}"


def _name(verdict: Mapping[str, Any]) -> str:
    return f"{verdict['job']}/{verdict['sink']}"


def _origin(origin: Origin | None) -> str:
    if origin is None:
        return "the parts were not asked"
    if origin.collector is None:
        known = origin.reason
    else:
        known = f"collector {origin.collector}, source {origin.source}"
    if origin.received_ns is None:
        return known
    return f"{known}, received {time_text(origin.received_ns)}"


def sentences(verdict: Mapping[str, Any]) -> Iterator[str]:
    """What a verdict says, without the sink and the fate."""
    yield from _ABOUT.get(verdict["fate"], _reason)(verdict)
    yield from verdict.get("notes", ())


def _delivered(verdict: Mapping[str, Any]) -> Iterator[str]:
    if "batch" in verdict:
        yield f"batch {verdict['batch']} at {time_text(verdict['time_ns'])}"
    if "route" in verdict:
        yield f"route {verdict['route']}"
    if "found" in verdict:
        yield verdict["found"]


def _waiting(verdict: Mapping[str, Any]) -> Iterator[str]:
    yield verdict["reason"]
    if "behind" in verdict:
        yield (
            f"it is at offset {verdict['next']:,},"
            f" {pluralize(verdict['behind'], 'record', form=',')} before this one"
        )
    if "wait_s" in verdict:
        yield f"about {verdict['wait_s']:g} s at its present pace"
    if "problem" in verdict:
        yield f"its problem: {verdict['problem']}"


def _not_routed(verdict: Mapping[str, Any]) -> Iterator[str]:
    for it in verdict.get("conditions", ()):
        said = "holds" if it["result"] else "is false" if it["result"] is False else "is NULL"
        values = list((it["values"] or {}).items())
        shown = ", ".join(f"{name}={value}" for name, value in values[:_VALUES_MAX])
        yield f"route {it['route']}: {it['where']} {said}" + (f" ({shown})" if shown else "")
    if not verdict.get("conditions"):
        yield verdict["reason"]


def _dead_letter(verdict: Mapping[str, Any]) -> Iterator[str]:
    about = verdict["dead_letter"]
    yield f"{about.get('code')}: {verdict.get('reason', '')}"
    yield f"refused {about.get('time')}, attempt {about.get('attempt')}"
    if "replay" in about:
        yield about["replay"]
    else:
        yield f"replayed: {about['file']}"


def _left_out(verdict: Mapping[str, Any]) -> Iterator[str]:
    yield f"{verdict['reason']} ({verdict['step']})"


def _lost(verdict: Mapping[str, Any]) -> Iterator[str]:
    start, end = verdict["lost"]
    yield f"{verdict['reason']}; the log has offsets {start:,} to {end - 1:,}"


def _reason(verdict: Mapping[str, Any]) -> Iterator[str]:
    yield verdict.get("reason", "")


_ABOUT: Final[Mapping[str, Callable[[Mapping[str, Any]], Iterator[str]]]] = {
    "delivered": _delivered,
    "waiting": _waiting,
    "not_routed": _not_routed,
    "sampled": _left_out,
    "deduplicated": _left_out,
    "dead_letter": _dead_letter,
    "replayed": _dead_letter,
    "lost": _lost,
}


def time_text(time_ns: int) -> str:
    """A Unix time for people: UTC with milliseconds."""
    moment = datetime.fromtimestamp(time_ns // 10**9, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ns % 10**9 // 10**6:03d}Z"
