"""What a collector dropped or refused, for other tools: by HTTP at its admin endpoint.

    POST /records   {"service": "shop", "from_ns": 1767225600000000000, "limit": 100}

The keys are those of `RecordQuery`; `trace_ids` and `record_ids` are lists. The answer has the
newest that match, oldest first:

    drops        as the drop journal keeps them (`penstock.collector.drops.journal`)
    missed       kinds of drops of the same time, source, step and reason that it did not record
    quarantine   records in quarantine: without their bytes, which are not redacted. Those are
                 shown on the collector's host alone (`penstock collector quarantine show`).

A collector of several workers asks them all; each record then has its `worker`.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from penstock.collector.agent.admin import Action
from penstock.collector.drops.query import MATCHES_MAX, RecordQuery
from penstock.service import Requester, ServiceError
from penstock.service.admin import is_this_machine

RECORDS_PATH: Final = "/records"
"""The path at the admin endpoint."""

_ANSWER_S: Final = 20.0
"""Maximum seconds of a search; the endpoint ends a connection after 30."""

_KEYS: Final = {"drops": ("drop", "missed"), "quarantine": ("kept",)}
"""The actions that answer, each with the keys of its lines."""


class RecordsEndpoint:
    """Answers questions with what the actions of the admin socket find.

    Args:
        actions: The actions by name, `drops` and `quarantine` among them.
        loop: The event loop that they run on.
        is_guarded: Whether clients have shown a token; else only this machine's get an answer,
            since it names records and has the beginning of their texts.
    """

    def __init__(
        self,
        actions: Mapping[str, Action],
        loop: asyncio.AbstractEventLoop,
        *,
        is_guarded: bool,
    ) -> None:
        self._actions = actions
        self._loop = loop
        self._is_guarded = is_guarded

    def answer(self, requester: Requester, body: bytes) -> tuple[str, Mapping[str, Any]]:
        """Answer the body of a POST; called on the threads of connections."""
        if not self._is_guarded and not is_this_machine(requester.peer):
            words = "only from this machine, unless the section `admin_access` says who may ask"
            return "403 Forbidden", {"error": words}
        try:
            request = json.loads(body)
        except (ValueError, RecursionError):
            request = None
        if not isinstance(request, dict):
            return "400 Bad Request", {"error": "the body must be a JSON object"}
        try:
            query = RecordQuery.read(request)
        except ValueError as error:
            return "400 Bad Request", {"error": str(error)}
        limit = min(query.limit or MATCHES_MAX, MATCHES_MAX)
        finding = self._find(replace(query, limit=limit))
        asked = asyncio.run_coroutine_threadsafe(finding, self._loop)
        try:
            return "200 OK", asked.result(_ANSWER_S)
        except TimeoutError:
            asked.cancel()
            words = f"not found within {_ANSWER_S:g} s: name a later from_ns"
            return "503 Service Unavailable", {"error": words}
        except ServiceError as error:
            return "503 Service Unavailable", {"error": str(error)}

    async def _find(self, query: RecordQuery) -> dict[str, list[dict[str, Any]]]:
        found: dict[str, list[dict[str, Any]]] = {"drops": [], "missed": [], "quarantine": []}
        places = {"drop": "drops", "missed": "missed", "kept": "quarantine"}
        for name, keys in _KEYS.items():
            request = {"do": name, **query.as_request()}
            async for line in self._actions[name](request):
                for key in keys:
                    if key in line:
                        found[places[key]].append(_without_bytes(line[key]))
        for name in ("drops", "quarantine"):  # of several workers each answers with its newest
            found[name].sort(key=lambda facts: int(facts["time_unix_nano"]))
            del found[name][: -query.limit]
        return found


def _without_bytes(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if name != "raw"}
