"""What collectors say of records that are in no stream: dropped by a transform, or in quarantine.

Collectors know services, ids and the beginning of texts, and no condition. Of a condition they are
asked for the service and the text that it demands, where it is a list of terms with `and`:

    service = 'checkout' and body like '%declined%'
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from penstock.deploy.trace.parts import PartsClient, PartUnavailableError, gather_bounded
from penstock.deploy.trace.question import TraceQuestion

_SERVICE: Final = re.compile(r"service\s*=\s*'([^']+)'", re.IGNORECASE)
_TEXT: Final = re.compile(r"body\s+like\s+'%([^'%_]+)%'", re.IGNORECASE)
_NO_LIST: Final = re.compile(r"\b(or|not|case)\b|[()]", re.IGNORECASE)
_QUOTED: Final = re.compile(r"'[^']*'")

_IDS_MAX: Final = 1000
"""Ids of one question to a collector, which looks for all of them while it reads once."""

_QUESTION_BYTES: Final = 60_000
"""Bytes of one question's ids; the body of a request may have 64 KiB."""

ANSWER_MAX: Final = 1000
"""Records of an answer, as `penstock.collector.drops.query` bounds them."""


def questions_of(question: TraceQuestion) -> list[dict[str, Any]]:
    """The questions to each collector (`penstock.collector.drops.query`); none: it has no answer.

    One question has many ids. Collectors cannot choose by severity, and a begin that is an offset
    says nothing to them.
    """
    named = {"service": question.service, "text": question.text}
    terms = {key: value for key, value in named.items() if value}
    wanted: list[dict[str, Any]] = [
        {key: ids, **terms}
        for key, whole in (("trace_ids", question.trace_ids), ("record_ids", question.record_ids))
        for ids in _in_pieces(whole)
    ]
    if not wanted and terms:
        wanted = [terms]
    if found := _demanded(question.where):
        wanted.append(found)
    start = question.start
    since = {"from_ns": int(start.timestamp()) * 10**9} if isinstance(start, datetime) else {}
    return [
        {**one, **since, "limit": min(ANSWER_MAX, question.limit * max(1, len(_ids_of(one))))}
        for one in wanted
    ]


def service_of(question: TraceQuestion) -> str:
    """The service that a question is about; empty: it names none, or none that is certain."""
    return question.service or _demanded(question.where).get("service", "")


def _demanded(where: str | None) -> dict[str, str]:
    """The service and the text that a condition demands, as far as that is certain."""
    if where is None or _NO_LIST.search(_QUOTED.sub("", where)) is not None:
        return {}
    matches = {"service": _SERVICE.search(where), "text": _TEXT.search(where)}
    return {key: match[1] for key, match in matches.items() if match is not None}


def _in_pieces(ids: Sequence[str]) -> Iterator[list[str]]:
    """Yield ids in pieces of which each fits into a question."""
    piece, size = list[str](), 0
    for one in dict.fromkeys(ids):
        size += (own := len(json.dumps(one)) + 2)
        if piece and (len(piece) == _IDS_MAX or size > _QUESTION_BYTES):
            yield piece
            piece, size = [], own
        piece.append(one)
    if piece:
        yield piece


def _ids_of(question: Mapping[str, Any]) -> list[str]:
    found: list[str] = question.get("trace_ids") or question.get("record_ids") or []
    return found


async def ask_collectors(
    client: PartsClient,
    collectors: Mapping[str, Mapping[str, Any]],
    questions: Sequence[Mapping[str, Any]],
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Ask every collector every question.

    Returns:
        Each record that did not reach the log, and the collectors that did not answer, each with
        the reason. A record has the keys `collector`, `time_ns`, `source`, `service`, `trace_id`,
        `record_id`, `fate` (`dropped`, with `reason`, `step` and `text`; `quarantined`, with
        `reason` and `replayed`).
        Of drops that a collector did not record there is one entry, with the fate `unrecorded` and
        their number in `records`.
    """
    silent: dict[str, str] = {}
    edges: dict[str, dict[str, Any]] = {}
    missed: dict[str, int] = {}
    for question in questions:
        answers = await gather_bounded([_ask(client, name, question) for name in collectors])
        for name, answer in zip(collectors, answers, strict=True):
            if isinstance(answer, str):
                silent[name] = answer
                continue
            edges |= {json.dumps(one): one for one in _edges(name, answer)}
            more = sum(int(kind["records"]) for kind in answer["missed"])
            missed[name] = max(missed.get(name, 0), more)  # each question asks for the same ones
    unrecorded = [
        {"collector": name, "fate": "unrecorded", "records": count}
        for name, count in missed.items()
        if count
    ]
    return [*edges.values(), *unrecorded], silent


async def _ask(
    client: PartsClient, name: str, question: Mapping[str, Any]
) -> Mapping[str, Any] | str:
    """A collector's answer, or why there is none.

    An answer that may lack records, for it has as many as one may have, is asked for again by
    halves of the ids.
    """
    try:
        answer = await client.ask_collector(name, question)
    except PartUnavailableError as error:
        return str(error)
    ids, limit = _ids_of(question), question.get("limit", ANSWER_MAX)
    is_full = limit <= max(len(answer["drops"]), len(answer["quarantine"]))
    if not is_full or len(ids) <= 1:
        return answer
    key = "trace_ids" if question.get("trace_ids") else "record_ids"
    half = len(ids) // 2
    first = await _ask(client, name, {**question, key: ids[:half]})
    second = await _ask(client, name, {**question, key: ids[half:]})
    if isinstance(first, str) or isinstance(second, str):
        return first if isinstance(first, str) else str(second)
    both = {kind: [*first[kind], *second[kind]] for kind in ("drops", "quarantine")}
    return {**both, "missed": first["missed"]}


def _edges(collector: str, answer: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for drop in answer["drops"]:
        yield {
            **_about(collector, drop),
            "fate": "dropped",
            "reason": drop["reason"],
            "step": drop["step"],
            "text": drop["text"],
        }
    for kept in answer["quarantine"]:
        yield {
            **_about(collector, kept),
            "fate": "quarantined",
            "reason": kept["reason"],
            "replayed": kept["replayed"],
        }


def _about(collector: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "collector": collector,
        "time_ns": int(facts["time_unix_nano"]),
        "source": facts["source"],
        "service": facts["service"] or None,
        "trace_id": facts["trace_id"] or None,
        "record_id": facts["record_id"] or None,
    }
