"""What collectors say of records that are in no stream: dropped by a transform, or in quarantine.

Collectors know services, ids and the beginning of texts, and no condition. Of a condition they are
asked for the service and the text that it demands, where it is a list of terms with `and`:

    service = 'checkout' and body like '%declined%'
"""

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from penstock.deploy.trace.parts import PartsClient, PartUnavailableError
from penstock.deploy.trace.report import time_text
from penstock.service.cli import Position

_SERVICE: Final = re.compile(r"service\s*=\s*'([^']+)'", re.IGNORECASE)
_TEXT: Final = re.compile(r"body\s+like\s+'%([^'%_]+)%'", re.IGNORECASE)
_NO_LIST: Final = re.compile(r"\b(or|not|case)\b|[()]", re.IGNORECASE)
_QUOTED: Final = re.compile(r"'[^']*'")


def questions_of(
    trace_ids: Sequence[str],
    record_ids: Sequence[str],
    where: str | None,
    *,
    start: Position,
    limit: int,
) -> list[dict[str, Any]]:
    """The questions to each collector (`penstock.collector.drops.query`); none: it has no answer.

    Args:
        trace_ids: Ids of traces.
        record_ids: Ids of records.
        where: A condition; None: ids are given.
        start: Begin of the search; an offset says nothing to a collector.
        limit: Maximum records.
    """
    wanted: list[dict[str, Any]] = [{"trace_id": one} for one in trace_ids]
    wanted += [{"record_id": one} for one in record_ids]
    if where is not None and _NO_LIST.search(_QUOTED.sub("", where)) is None:
        terms = {"service": _SERVICE.search(where), "text": _TEXT.search(where)}
        named = {key: match[1] for key, match in terms.items() if match is not None}
        wanted += [named] if named else []
    since = {"from_ns": int(start.timestamp()) * 10**9} if isinstance(start, datetime) else {}
    return [{**one, **since, "limit": limit} for one in wanted]


async def ask_collectors(
    client: PartsClient,
    collectors: Mapping[str, Mapping[str, Any]],
    questions: Sequence[Mapping[str, Any]],
) -> tuple[list[str], dict[str, str]]:
    """Ask every collector every question.

    Returns:
        A line for each record that did not reach the log, and the collectors that did not answer,
        each with the reason.
    """
    lines: list[str] = []
    silent: dict[str, str] = {}
    for question in questions:
        asked = (client.ask_collector(name, question) for name in collectors)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        for name, answer in zip(collectors, answers, strict=True):
            if isinstance(answer, PartUnavailableError):
                silent[name] = str(answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                lines += [line for line in _lines(name, answer) if line not in lines]
    return lines, silent


def _lines(collector: str, answer: Mapping[str, Any]) -> Iterator[str]:
    for drop in answer["drops"]:
        what = f"{drop['reason']} by {drop['step']}"
        yield f"{_about(collector, drop)}: {what}: {drop['text']}"
    for kept in answer["quarantine"]:
        replayed = ", put back since" if kept["replayed"] else ""
        yield f"{_about(collector, kept)}: in quarantine{replayed}: {kept['reason']}"
    if missed := sum(int(kind["records"]) for kind in answer["missed"]):
        yield f"{collector} dropped {missed:,} more in that time and has no record of them"


def _about(collector: str, facts: Mapping[str, Any]) -> str:
    time = time_text(int(facts["time_unix_nano"]))
    service = facts["service"] or "no service"
    return f"not in the log: {time}, {collector}, source {facts['source']}, {service}"
