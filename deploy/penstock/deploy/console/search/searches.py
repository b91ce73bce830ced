"""Searches that run beside the event loop, each on a thread: bounded, followed, and cancelled.

A page starts a search, asks how far it is, and gets the answer when it is there. A search that
nobody asks for any more is ended, and so is one that takes too long: what it found until then is
its answer.
"""

import asyncio
import json
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NoReturn, Protocol

import click
import structlog

from penstock.base.clock import Clock
from penstock.base.errors import ServiceError
from penstock.deploy.console.config import ConsoleConfig
from penstock.deploy.trace.answer import answer_question, with_stopped_jobs
from penstock.deploy.trace.explain import Trace
from penstock.deploy.trace.find import Progress
from penstock.deploy.trace.parts import Parts, PartsClient
from penstock.deploy.trace.question import ConditionError, TraceQuestion
from penstock.deploy.trace.report import sentences
from penstock.logd.errors import LogdError

ABANDONED_S: Final = 15.0
"""Seconds after which a search that nobody asks for is ended, and an answer is forgotten."""

MAX_ANSWERS: Final = 8
"""Answers that are kept until they are fetched; beyond it the oldest goes."""

THREADS_EACH: Final = 2
"""Threads for each search that may run: those that were cancelled end within a moment, but while
they wait for logd or Spark."""

_JOIN_S: Final = 2.0
"""Seconds that threads have to end when the console ends."""

_SILENT_MAX: Final = 100
"""Parts that are named in an answer because they could not be asked."""

State = Literal["running", "done", "cancelled", "failed"]


class TooManySearchesError(Exception):
    """The search is refused because the bound of concurrent searches is reached."""


class SearchCancelledError(Exception):
    """A search was cancelled, or nobody asked for it any more."""


class Tracer(Protocol):
    """Answers a question. It blocks, and calls `progress.is_to_end`."""

    def __call__(self, config: ConsoleConfig, question: TraceQuestion, progress: Progress) -> Trace:
        """Return the answer; see `trace_on_thread`."""
        ...


def trace_on_thread(config: ConsoleConfig, question: TraceQuestion, progress: Progress) -> Trace:
    """Answer a question on a thread that has no event loop.

    Raises:
        ConditionError: The condition is not valid.
        UsageError: There is no such stream.
        UnavailableError: logd cannot be asked, or no job, which a condition needs.
    """
    client = PartsClient(config)
    wants_parts = question.with_ways or question.where is not None
    parts = asyncio.run(client.statuses()) if wants_parts else Parts()
    with with_stopped_jobs(client, config, parts, question.job_files) as all_parts:
        return answer_question(config, question, client, all_parts, progress=progress)


@dataclass(slots=True)
class _Search:
    """One search. Its thread writes `state` last; the event loop reads.

    Attributes:
        asked_ns: Monotonic time at which a page last asked for it.
        answer: The answer, or the error, as JSON.
    """

    question: TraceQuestion
    started_ns: int
    asked_ns: int
    progress: Progress = field(default_factory=Progress)
    state: State = "running"
    is_cancelled: bool = False
    answer: bytes = b"null"
    thread: threading.Thread | None = None


class Searches:
    """The searches of one console.

    Args:
        config: What a search asks, and its bounds.
        clock: Clock of durations.
        trace: Answers a question.

    Attributes:
        ended: Number of searches that ended, by state.
    """

    def __init__(
        self, config: ConsoleConfig, clock: Clock, trace: Tracer = trace_on_thread
    ) -> None:
        self._config = config
        self._clock = clock
        self._trace = trace
        self._all: dict[str, _Search] = {}
        self.ended: dict[State, int] = {"done": 0, "cancelled": 0, "failed": 0}
        self.refused = 0

    @property
    def running(self) -> int:
        """Number of searches that run; one that was cancelled has given its place away."""
        return sum(not it.is_cancelled for it in self._alive())

    def _alive(self) -> list[_Search]:
        """Searches whose threads have not ended, those that were cancelled among them."""
        return [it for it in self._all.values() if it.thread is not None and it.thread.is_alive()]

    def start(self, question: TraceQuestion) -> str:
        """Start a search; returns its name, which nobody can guess.

        Raises:
            TooManySearchesError: There is no room.
        """
        self._forget()
        most = self._config.search.max_concurrent
        alive = self._alive()
        if self.running >= most or len(alive) >= THREADS_EACH * most:
            self._refuse(
                f"{most} searches are running, and no more may; wait for one to end, or raise"
                " search.max_concurrent"
            )
        if question.job_files and any(it.question.job_files for it in alive):
            self._refuse("another search reads the files of stopped jobs; wait until it ends")
        now_ns = self._clock.monotonic_ns()
        search = _Search(question, now_ns, now_ns)
        search.progress.is_to_end = lambda: self._is_to_end(search)
        name = secrets.token_urlsafe(16)
        search.thread = threading.Thread(
            target=self._run, args=(search,), name="penstock-search", daemon=True
        )
        self._all[name] = search
        search.thread.start()
        return name

    def _refuse(self, words: str) -> NoReturn:
        self.refused += 1
        raise TooManySearchesError(words)

    def describe(self, name: str) -> bytes | None:
        """How far a search is, or its answer, as JSON; None: there is no such search."""
        search = self._all.get(name)
        if search is None:
            return None
        search.asked_ns = self._clock.monotonic_ns()
        progress = search.progress
        state: State = "cancelled" if search.is_cancelled else search.state
        document: dict[str, Any] = {
            "state": state,
            "progress": {
                "seconds": round((search.asked_ns - search.started_ns) / 1e9, 1),
                "partitions": progress.partitions,
                "done": progress.done,
                "looked_at": progress.looked_at,
                "found": progress.found,
                "parts": progress.parts,
            },
        }
        if state in ("done", "failed"):
            return json.dumps(document).encode()[:-1] + b', "answer": ' + search.answer + b"}"
        return json.dumps(document).encode()

    def cancel(self, name: str) -> bool:
        """End a search; false: there is no such search."""
        search = self._all.get(name)
        if search is None:
            return False
        search.is_cancelled = True
        return True

    async def close(self) -> None:
        """End all searches, and wait a little for their threads."""
        searches = list(self._all.values())
        for search in searches:
            search.is_cancelled = True
        for search in searches:
            if search.thread is not None:
                await asyncio.to_thread(search.thread.join, _JOIN_S)

    def _forget(self) -> None:
        """Forget answers that nobody fetches, and the oldest of too many."""
        now_ns = self._clock.monotonic_ns()
        over = [
            name
            for name, it in self._all.items()
            if it.thread is not None and not it.thread.is_alive()
        ]
        for index, name in enumerate(reversed(over)):
            is_old = now_ns - self._all[name].asked_ns > ABANDONED_S * 1e9
            if is_old or index >= MAX_ANSWERS:
                del self._all[name]

    def _is_to_end(self, search: _Search) -> bool:
        now_ns = self._clock.monotonic_ns()
        if search.is_cancelled or now_ns - search.asked_ns > ABANDONED_S * 1e9:
            raise SearchCancelledError
        return now_ns - search.started_ns > self._config.search.timeout_s * 1e9

    def _run(self, search: _Search) -> None:
        """Search, on its thread. Names nothing of the question or of records in the log."""
        state: State = "done"
        reason = ""
        try:
            trace = self._trace(self._config, search.question, search.progress)
            search.answer = json.dumps(answer_of(trace), separators=(",", ":")).encode()
        except SearchCancelledError:
            search.is_cancelled, state = True, "cancelled"
        except ConditionError as error:
            state, reason = "failed", type(error).__name__
            said = {"error": _said(error), "fields": {"where": error.reason}}
            search.answer = json.dumps(said).encode()
        except ModuleNotFoundError as error:
            state, reason = "failed", type(error).__name__
            words = f"the console lacks {error.name}: install penstock[router] where it runs"
            search.answer = json.dumps({"error": words}).encode()
        except (click.UsageError, ServiceError, LogdError, OSError) as error:
            state, reason = "failed", type(error).__name__
            search.answer = json.dumps({"error": _said(error)}).encode()
        except Exception as error:
            state, reason = "failed", type(error).__name__
            words = "the search failed by a fault of the console; its log has more"
            search.answer = json.dumps({"error": words}).encode()
            raise
        finally:
            if search.is_cancelled:
                state = "cancelled"
            self.ended[state] += 1
            took_s = (self._clock.monotonic_ns() - search.started_ns) / 1e9
            structlog.get_logger().info(
                "search_ended",
                state=state,
                reason=reason,
                records=search.progress.found,
                records_scanned=search.progress.looked_at,
                seconds=round(took_s, 2),
            )
            search.state = state


def _said(error: Exception) -> str:
    """What a page says of an error, in a line."""
    if isinstance(error, ServiceError):
        return f"{error.reason}; {error.fix}"
    return error.format_message() if isinstance(error, click.UsageError) else str(error)


def answer_of(trace: Trace) -> Mapping[str, Any]:
    """The answer as the page has it: a trace's JSON, and what each part of it says in sentences."""
    found = trace.as_json()
    for record in found["records"]:
        record["sinks"] = [{**it, "says": [*sentences(it)]} for it in record["sinks"]]
    found["applications"] = [{**it.as_json(), "says": it.sentence} for it in trace.applications]
    silent = found["not_asked"]
    found["not_asked"] = dict(list(silent.items())[:_SILENT_MAX])
    found["not_asked_more"] = max(0, len(silent) - _SILENT_MAX)
    return found
