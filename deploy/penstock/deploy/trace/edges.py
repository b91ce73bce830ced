"""What collectors say of records that are in no stream: dropped by a transform, or in quarantine.

Collectors know services, ids and the beginning of texts, and no condition. Of a condition they are
asked for the service and the text that it demands, where it is a list of terms with `and`:

    service = 'checkout' and body like '%declined%'
"""

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


def questions_of(question: TraceQuestion) -> list[dict[str, Any]]:
    """The questions to each collector (`penstock.collector.drops.query`); none: it has no answer.

    Collectors cannot choose by severity, and a begin that is an offset says nothing to them.
    """
    named = {"service": question.service, "text": question.text}
    terms = {key: value for key, value in named.items() if value}
    wanted: list[dict[str, Any]] = [{"trace_id": one, **terms} for one in question.trace_ids]
    wanted += [{"record_id": one, **terms} for one in question.record_ids]
    if not wanted and terms:
        wanted = [terms]
    if question.where is not None and _NO_LIST.search(_QUOTED.sub("", question.where)) is None:
        matches = {"service": _SERVICE.search(question.where), "text": _TEXT.search(question.where)}
        found = {key: match[1] for key, match in matches.items() if match is not None}
        wanted += [found] if found else []
    start = question.start
    since = {"from_ns": int(start.timestamp()) * 10**9} if isinstance(start, datetime) else {}
    return [{**one, **since, "limit": question.limit} for one in wanted]


async def ask_collectors(
    client: PartsClient,
    collectors: Mapping[str, Mapping[str, Any]],
    questions: Sequence[Mapping[str, Any]],
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Ask every collector every question.

    Returns:
        Each record that did not reach the log, and the collectors that did not answer, each with
        the reason. A record has the keys `collector`, `time_ns`, `source`, `service`, `fate`
        (`dropped`, with `reason`, `step` and `text`; `quarantined`, with `reason` and `replayed`).
        Of drops that a collector did not record there is one entry, with the fate `unrecorded` and
        their number in `records`.
    """
    edges: list[dict[str, Any]] = []
    silent: dict[str, str] = {}
    for question in questions:
        answers = await gather_bounded([_ask(client, name, question) for name in collectors])
        for name, answer in zip(collectors, answers, strict=True):
            if isinstance(answer, str):
                silent[name] = answer
            else:
                edges += [one for one in _edges(name, answer) if one not in edges]
    return edges, silent


async def _ask(
    client: PartsClient, name: str, question: Mapping[str, Any]
) -> Mapping[str, Any] | str:
    """A collector's answer, or why there is none."""
    try:
        return await client.ask_collector(name, question)
    except PartUnavailableError as error:
        return str(error)


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
    if missed := sum(int(kind["records"]) for kind in answer["missed"]):
        yield {"collector": collector, "fate": "unrecorded", "records": missed}


def _about(collector: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "collector": collector,
        "time_ns": int(facts["time_unix_nano"]),
        "source": facts["source"],
        "service": facts["service"] or None,
    }
