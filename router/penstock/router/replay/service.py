"""Dead letters delivered again while the job runs, asked for at its admin endpoint.

    POST /dead-letters   Authorization: Bearer TOKEN   (that of the job's `actions_token_file`)
    {"do": "list", "sink": "search"}                   files that wait, with their reasons
    {"do": "replay", "sink": "search", "to": "lake", "by": "alice"}   `to` and `by` may be left out
    {"do": "stop", "sink": "lake", "by": "alice"}      the one under way; `sink` may be left out

One replay at a time. The target's query rests meanwhile, so that the sink has one writer; the other
sinks go on. Each replay is recorded in `replays.ndjson` beside the dead letters, when it was
asked for and when it ended, and in the log.

A replay ends before its time when somebody stops it, or when the job drains: the sink gives up the
batch in its hands, files that were delivered are in `done`, the one in work stays in `replaying`.
Nothing begins again by itself: the same request continues from there.
"""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Any, Final, Literal

import structlog

from penstock.base.clock import BlockingClock, text_now
from penstock.base.pluralize import pluralize
from penstock.router.deadletters.replayable import find_dead_letters
from penstock.router.job.config import JobConfig
from penstock.router.job.permissions import PATH, Answer, refusal
from penstock.router.replay.audit_log import BY_MAX, append_audit
from penstock.router.replay.bounded_run import ReplayStoppedError
from penstock.router.replay.progress import Progress
from penstock.router.sinks import Sink
from penstock.router.streaming.query import SinkQuery
from penstock.service import Requester, ServiceError

__all__ = ["LISTED_MAX", "PATH", "REST_S", "ReplayRequest", "ReplayService"]
LISTED_MAX: Final = 50
"""Files in one answer."""

REST_S: Final = 60.0
"""Maximum seconds for a sink to end the batch in work."""

_COUNT_EVERY_NS: Final = 5 * 10**9
_What = Literal["asked", "stop asked", "stopped", "failed", "ended"]
"""What a line of the audit log is about; `penstock.router.replay.audit_log` describes it."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """A request for a replay.

    Attributes:
        by: Name that the requester gave.
        peer: Address of the request.
        stop: Set when the replay is to end early.
        progress: The replay's progress.
    """

    sink: str
    target: str
    by: str
    files: int
    asked_ns: int
    peer: str = ""
    stop: threading.Event = field(default_factory=threading.Event)
    progress: Progress = field(default_factory=lambda: Progress("files"))


class _State(Enum):
    NONE = auto()
    ASKED = auto()
    RUNNING = auto()
    ENDED = auto()
    """The sink is to be opened again."""


Deliver = Callable[[ReplayRequest], int]
"""Delivers the dead letters of a sink to the target; returns how many records it got. Raises
`ServiceError` or whatever a sink raises."""


class ReplayService:
    """Replays of one job. `answer` is for any thread, everything else for the job's own.

    Args:
        deliver: Delivers a replay, on a separate thread.
        reopen: Opens a sink of the job again.
    """

    def __init__(
        self,
        config: JobConfig,
        clock: BlockingClock,
        *,
        deliver: Deliver,
        reopen: Callable[[str], Sink],
    ) -> None:
        self._config = config
        self._clock = clock
        self._deliver = deliver
        self._reopen = reopen
        self._lock = threading.Lock()
        self._state = _State.NONE
        self._replay: ReplayRequest | None = None
        self._thread: threading.Thread | None = None
        self._ends = False
        self._stopped_by = ""
        self._last: dict[str, Any] | None = None
        self._waiting: dict[str, int] = {}
        self._counted_ns: int | None = None

    def answer(self, visitor: Requester, body: bytes) -> Answer:
        refused = refusal(self._config, visitor)
        if refused is not None:
            return refused
        try:
            wanted = json.loads(body)
        except (ValueError, RecursionError):
            wanted = None
        wanted = wanted if isinstance(wanted, dict) else {}
        if wanted.get("do") == "stop":
            return self._stop(wanted, visitor.peer)
        return self._about_dead_letters(wanted, visitor.peer)

    def _about_dead_letters(self, wanted: Mapping[str, Any], peer: str) -> Answer:
        sink = wanted.get("sink")
        if not isinstance(sink, str) or not self._is_sink(sink):
            known = ", ".join(self._config.sinks)
            return "400 Bad Request", {"error": f"name a sink of the job: {known}"}
        try:
            if wanted.get("do") == "list":
                return "200 OK", {"files": self._list(sink)}
            if wanted.get("do") == "replay":
                return self._ask(wanted, sink, peer)
        except (ServiceError, OSError) as error:
            return "500 Internal Server Error", {"error": str(error)}
        return "400 Bad Request", {"error": "do: list, replay or stop"}

    def poll(self, queries: Mapping[str, SinkQuery]) -> None:
        """Go on with what was asked for."""
        replay = self._replay
        if self._state is _State.ASKED and replay is not None:
            if replay.stop.is_set():
                queries[replay.target].go_on()
                self._finish(replay, problem=self._why_stopped(replay))
            elif queries[replay.target].rest():
                self._begin(replay)
            elif self._clock.monotonic_ns() - replay.asked_ns > REST_S * 1e9:
                queries[replay.target].go_on()
                problem = f"{replay.target} has been busy with a batch for {REST_S:g} s"
                self._finish(replay, problem=f"{problem}; see what keeps it, and ask again")
        elif self._state is _State.RUNNING and not self._is_delivering():
            self._state = _State.ENDED
        if self._state is _State.ENDED and replay is not None:
            try:
                queries[replay.target].resume(self._reopen(replay.target))
            except (ServiceError, OSError) as error:
                queries[replay.target].failure = f"it cannot be opened again: {error}"
                return
            with self._lock:
                self._state, self._replay = _State.NONE, None

    def end(self) -> None:
        """The job ends, and no replay goes on or begins."""
        with self._lock:
            replay, self._ends = self._replay, True
        if replay is not None:
            self._stopped_by = self._stopped_by or "the job's end"
            replay.stop.set()
            if self._state is _State.ASKED:
                self._finish(replay, problem=self._why_stopped(replay))

    def join(self, timeout_s: float) -> str | None:
        """After `end`: wait for a replay to give up; to which sink one has not."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        replay = self._replay
        return replay.target if replay is not None and self._is_delivering() else None

    @property
    def problem(self) -> str | None:
        """Description of what keeps the sink of a replay from delivering; None: nothing."""
        replay = self._replay
        if replay is None or replay.progress.problem is None:
            return None
        return f"replay to {replay.target}: {replay.progress.problem}"

    def info(self) -> dict[str, Any]:
        """Return the fields for `/status`."""
        self._count()
        replay, token = self._replay, self._config.actions_token_file
        return {
            "possible": token is not None and token.exists(),
            "stoppable": token is not None,
            "under_way": None if replay is None else replay.target,
            "progress": None if replay is None else self._progress(replay),
            "last": self._last,
            "files": self._waiting,
        }

    def _is_sink(self, name: object) -> bool:
        return isinstance(name, str) and name in self._config.sinks

    def _is_delivering(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _list(self, sink: str) -> list[dict[str, Any]]:
        found = find_dead_letters(self._config.dead_letters, sink=sink)
        return [file.summary() for file in found[:LISTED_MAX]]

    def _ask(self, wanted: Mapping[str, Any], sink: str, peer: str) -> Answer:
        target = wanted.get("to") or sink
        if not self._is_sink(target):
            return "400 Bad Request", {"error": f"to: the job has no sink {target!r}"}
        files = len(find_dead_letters(self._config.dead_letters, sink=sink))
        if not files:
            return "409 Conflict", {"error": f"{sink} has no dead letters that wait"}
        by = str(wanted.get("by") or peer)[:BY_MAX]
        with self._lock:
            if self._ends:
                return "409 Conflict", {"error": "the job ends; ask when it runs again"}
            if self._state is not _State.NONE:
                return "409 Conflict", {"error": "another replay is under way; wait for its end"}
            replay = ReplayRequest(sink, target, by, files, self._clock.monotonic_ns(), peer)
            self._note(replay, "asked", files=files)  # what cannot be recorded is not done
            self._replay, self._state, self._stopped_by = replay, _State.ASKED, ""
        return "202 Accepted", {
            "done": f"to {target}, of {sink}: {pluralize(files, 'file')}",
            "files": files,
        }

    def _stop(self, wanted: Mapping[str, Any], peer: str) -> Answer:
        replay = self._replay
        if replay is None:
            return "409 Conflict", {"error": "no replay is under way"}
        if wanted.get("sink") not in (None, replay.target):
            return "409 Conflict", {"error": f"the replay under way is one to {replay.target}"}
        by = self._stopped_by = str(wanted.get("by") or peer)[:BY_MAX]
        try:
            self._note(replay, "stop asked", by=by, peer=peer)
        except OSError as error:  # it stops all the same, and says so where it ends
            _log.warning("replay_stop_audit_failed", reason=str(error))
        replay.stop.set()
        return "202 Accepted", {"done": f"the replay to {replay.target} is to stop"}

    def _why_stopped(self, replay: ReplayRequest) -> str:
        far = replay.progress if replay.progress.of else "nothing"
        return f"stopped by {self._stopped_by} after {far}; ask again, and it goes on from there"

    def _progress(self, replay: ReplayRequest) -> dict[str, Any]:
        replay.progress.sink = replay.target
        return replay.progress.as_json(self._clock.monotonic_ns())

    def _begin(self, replay: ReplayRequest) -> None:
        self._state = _State.RUNNING
        self._thread = threading.Thread(
            target=self._run, args=(replay,), name="replay", daemon=True
        )
        self._thread.start()

    def _run(self, replay: ReplayRequest) -> None:
        try:
            records = self._deliver(replay)
        except ReplayStoppedError:
            problem, records = self._why_stopped(replay), replay.progress.records
            self._finish(replay, records=records, problem=problem, ended=False)
        except Exception as error:  # noqa: BLE001 - the job goes on, whatever a sink raises
            problem, records = str(error) or type(error).__name__, replay.progress.records
            self._finish(replay, records=records, problem=problem, ended=False)
        else:
            self._finish(replay, records=records, ended=False)

    def _finish(
        self, replay: ReplayRequest, *, records: int = 0, problem: str = "", ended: bool = True
    ) -> None:
        """Say how it went; `ended`: nothing was begun, and nothing is to be opened again."""
        self._last = {
            "sink": replay.sink, "to": replay.target, "by": replay.by,
            "records": records, "problem": problem, "time": text_now(self._clock),
        }  # fmt: skip
        self._counted_ns = None
        try:
            what: _What = "stopped" if replay.stop.is_set() else "failed"
            self._note(replay, what if problem else "ended", records=records, problem=problem)
        except OSError as error:
            _log.warning("replay_audit_failed", reason=str(error))
        if ended:
            with self._lock:
                self._state, self._replay = _State.NONE, None

    def _note(self, replay: ReplayRequest, what: _What, **facts: Any) -> None:
        """Take it down.

        Raises:
            OSError: The disk failed.
        """
        about: dict[str, Any] = {"sink": replay.sink, "to": replay.target, "by": replay.by}
        about |= {"peer": replay.peer, **facts}
        match what:
            case "asked":
                _log.info("replay_requested", **about)
            case "stop asked":
                _log.info("replay_stop_requested", **about)
            case "stopped":
                _log.info("replay_stopped", **about)
            case "failed":
                _log.info("replay_failed", **about)
            case "ended":
                _log.info("replay_completed", **about)
        append_audit(self._config.dead_letters, self._clock, what, **about)

    def _count(self) -> None:
        now_ns = self._clock.monotonic_ns()
        if self._counted_ns is None or now_ns - self._counted_ns > _COUNT_EVERY_NS:
            self._counted_ns = now_ns
            home = self._config.dead_letters
            self._waiting = {name: _files(home / name) for name in self._config.sinks}


def _files(directory: Path) -> int:
    return sum(1 for pattern in ("*.ndjson", "replaying/*.ndjson") for _ in directory.glob(pattern))
