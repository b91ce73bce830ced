"""The document the page shows, made at most so often, however many browsers ask for it."""

import gzip
import json
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.base.clock import Clock
from penstock.deploy.account.account import Account, Answer
from penstock.deploy.account.rows import worst
from penstock.deploy.console.poller import Poller
from penstock.deploy.console.rates import Rates
from penstock.deploy.console.snapshot import (
    describe_collectors,
    describe_parts,
    describe_pipeline,
    describe_routers,
)
from penstock.deploy.console.streams import Streams

HISTORY_MAX: Final = 120
"""Points of each line of the picture, one for each `_POINT_NS`."""

_POINT_NS: Final = 10**9
_AGE_NS: Final = 400_000_000
"""Age at which a view is rendered again."""


@dataclass(slots=True)
class View:
    """Makes documents."""

    polling: Poller
    account: Account
    streams: Streams
    rates: Rates
    clock: Clock
    started_ns: int
    can_act: bool
    _history: dict[str, deque[list[float | None]]] = field(default_factory=dict)
    _point_ns: int = 0
    _made_ns: int = 0
    _plain: bytes = b""
    _packed: bytes = b""

    def document(self) -> dict[str, Any]:
        """Return the document of all that is known now."""
        now_ns = self.clock.monotonic_ns()
        parts = self.polling.seen()
        pipeline = describe_pipeline(parts, self.rates, now_ns)
        for node in pipeline["nodes"]:
            node["history"] = list(self._history.get(node["id"], ()))
        streams = self.streams
        answered = streams.answered_ns
        return {
            "at_ms": self.clock.unix_ns() // 1_000_000,
            "started_ns": self.started_ns,
            "parts": describe_parts(parts, self.rates, now_ns),
            "pipeline": pipeline,
            "streams": {
                "rows": streams.rows,
                "problem": streams.problem,
                "age_ms": None if answered is None else (now_ns - answered) // 1_000_000,
            },
            "cluster": {
                "name": streams.cluster,
                "controller": streams.controller,
                "nodes": streams.nodes,
            },
            "collectors": describe_collectors(parts, self.rates, now_ns),
            "routers": describe_routers(parts, self.rates, now_ns),
            "account": {
                "state": worst(self.account.rows),
                "rows": [row.as_dict() for row in self.account.rows],
            },
            "actions": {"token": self.can_act, "clustered": streams.cluster is not None},
        }

    def note(self) -> None:
        """There is news: look at the account, and add a point to the lines when it is time."""
        now_ns = self.clock.monotonic_ns()
        answers = [
            Answer(part.name, part.status, part.problem, part.asked_ns)
            for part in self.polling.seen()
        ]
        self.account.look(answers, now_ns)
        if self._point_ns and now_ns - self._point_ns < _POINT_NS:
            return
        self._point_ns = now_ns
        for node in describe_pipeline(self.polling.seen(), self.rates, now_ns)["nodes"]:
            line = self._history.setdefault(node["id"], deque(maxlen=HISTORY_MAX))
            line.append([node["in_rate"], node["out_rate"], node["lag"]])

    def encoded(self, *, packed: bool) -> bytes:
        """The document as JSON, with gzip if wanted."""
        self.polling.watch()
        now_ns = self.clock.monotonic_ns()
        if not self._plain or now_ns - self._made_ns > _AGE_NS:
            self._plain = json.dumps(self.document(), separators=(",", ":")).encode()
            self._packed, self._made_ns = b"", now_ns
        if not packed:
            return self._plain
        if not self._packed:
            self._packed = gzip.compress(self._plain, compresslevel=1)
        return self._packed
