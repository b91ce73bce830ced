"""Answers the page's requests.

    GET  /                the page, and its files by name
    GET  /api/snapshot    all that is known (see `penstock.deploy.console.snapshot`)
    GET  /api/token       what the token that is shown allows: may (act, look or nothing), is_known,
                          and whether the console has one to act with, and one to look with
    GET  /api/specs       specs of records, and what collectors refused; see `specs.sampler`
    GET  /api/history     figures of the past: kind, name, span (15m, 6h, 7d); see `history.rings`
    GET  /api/records     newest records of a stream: stream, at=0:17,1:4, subject, text, severity;
                          with back=1 those after `at` or since_ms; with whole=1 the one at `at`
    POST /api/searches    search for records: the fields of `search.form` as a JSON object; the
                          answer has its id, or what is wrong with each field
    GET  /api/searches/ID how far the search is, or its answer; see `search.searches`
    DELETE /api/searches/ID   cancels it
    POST /api/actions     {"action": "pause", "stream": "logs"}, with the token; or
                          {"action": "replay-dead-letters", "router": "router", "sink": "lake"}

Everything is `no-store`, and nothing but the page's own files may be loaded or run by it. What
telemetry says comes as JSON, which the page shows as text.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import parse_qs

from penstock.base.http.server import Request, Response
from penstock.deploy.console.actions import (
    NoActionError,
    Routers,
    StreamAdmin,
    act,
    act_on_dead_letters,
    is_dead_letter_action,
)
from penstock.deploy.console.authorizer import Authorizer
from penstock.deploy.console.config import SearchSection
from penstock.deploy.console.records import (
    PARTITIONS_MAX,
    RecordQuery,
    RecordReader,
    newest_records,
)
from penstock.deploy.console.search.form import FormError, read_form
from penstock.deploy.console.search.searches import Searches, TooManySearchesError
from penstock.deploy.console.view import View
from penstock.logd.errors import LogdError, RefusedError

if TYPE_CHECKING:
    from penstock.service.tracing.spans import Tracer

PAGE: Final = Path(__file__).parent / "page"
BODY_BYTES_MAX: Final = 16 * 1024

_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
    " require-trusted-types-for 'script'; trusted-types 'none'"
)
_ALWAYS: Final = {
    "cache-control": "no-store",
    "connection": "close",
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_READ: Final = ("/api/snapshot", "/api/records", "/api/history", "/api/specs")
_SEARCHES: Final = "/api/searches"
_JSON: Final = {"content-type": "application/json"}
_NO_LOG: Final = "the console knows no logd; see its key `logd`"
_FILTER_CHARACTERS_MAX: Final = 512
_NUMBER: Final = re.compile("[0-9]{0,15}")
_PLACE: Final = re.compile(r"([0-9]{1,6})(?::([0-9]{0,18}))?")


class LogAccess(RecordReader, StreamAdmin, Protocol):
    """The part of `AsyncLogClient` that the page uses."""


def page_files() -> dict[str, tuple[bytes, str]]:
    """The page's files by path, with their types."""
    found = {
        f"/{path.name}": (path.read_bytes(), _TYPES[path.suffix])
        for path in sorted(PAGE.iterdir())
        if path.suffix in _TYPES
    }
    found["/"] = found["/index.html"]
    return found


@dataclass(slots=True)
class Web:
    """Answers.

    Attributes:
        log: None: no logd is configured.
        routers: Have dead letters.
        specs: `penstock.deploy.console.specs.sampler.SpecSampler.describe`.
        history: `penstock.deploy.console.history.recorder.Recorder.read`.
        searches: None: no logd is configured.
        bounds: Bounds of an answer.
        tracer: Has spans of actions; None: there are none.
        counts: Answers by status code.
    """

    access: Authorizer
    view: View
    log: LogAccess | None
    routers: Routers
    specs: Callable[[], Mapping[str, Any]]
    history: Callable[[str, str, str], Mapping[str, Any] | None]
    searches: Searches | None = None
    bounds: SearchSection = field(default_factory=SearchSection)
    tracer: "Tracer | None" = None
    files: Mapping[str, tuple[bytes, str]] = field(default_factory=page_files)
    counts: dict[int, int] = field(default_factory=dict)

    async def answer(self, request: Request, peer: str) -> Response:
        """Answer one request. Never raises."""
        response = await self._answer(request, peer)
        self.counts[response.status] = self.counts.get(response.status, 0) + 1
        headers = {**_ALWAYS, **response.headers}
        body = b"" if request.method == "HEAD" else response.body
        return Response(response.status, body, headers)

    async def _answer(self, request: Request, peer: str) -> Response:
        try:
            self._check_name(request.headers)
            if request.path == "/api/actions":
                return _answered(await self._act(request, peer))
            if request.path == _SEARCHES or request.path.startswith(f"{_SEARCHES}/"):
                self._check_may_look(request)
                return self._search(request)
            return await self._look(request)
        except _RefusalError as refusal:
            return refusal.response()
        except RefusedError as refused:
            return _RefusalError(409, refused.code, str(refused)).response()
        except (LogdError, OSError) as error:  # of files of `access`, too
            return _RefusalError(503, "UNAVAILABLE", str(error)).response()

    def _check_name(self, headers: Mapping[str, str]) -> None:
        if not self.access.is_called_by_name(headers.get("host", ""), headers.get("origin", "")):
            what = "that is none of the console's names; add it to its key `hosts`"
            raise _RefusalError(421, "UNKNOWN_HOST", what)

    async def _look(self, request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            raise _RefusalError(405, "METHOD", "only GET")
        if request.path in self.files:
            body, kind = self.files[request.path]
            return Response(200, body, {"content-type": kind})
        if request.path == "/api/token":
            return _answered(self._token(request.headers.get("authorization", "")))
        if request.path not in _READ:
            raise _RefusalError(404, "NOT_FOUND", "there is nothing here")
        self._check_may_look(request)
        if request.path == "/api/records":
            query = record_query_of(request.query)
            return _answered(await newest_records(self._reachable(), query))
        if request.path == "/api/specs":
            return _answered(self.specs())
        if request.path == "/api/history":
            return _answered(self._history(request.query))
        packed = "gzip" in request.headers.get("accept-encoding", "")
        more = {"content-encoding": "gzip"} if packed else {}
        return Response(200, self.view.encoded(packed=packed), _JSON | more)

    def _check_may_look(self, request: Request) -> None:
        if not self.access.may_look(request.headers.get("authorization", "")):
            what = "the console shows what it knows to whom has its token"
            raise _RefusalError(401, "TOKEN", what)

    def _search(self, request: Request) -> Response:
        """Start a search, say how far one is, or cancel it."""
        searches = self.searches
        if searches is None:
            raise _RefusalError(404, "NO_LOG", _NO_LOG)
        name = request.path.removeprefix(_SEARCHES).removeprefix("/")
        if not name:
            if request.method != "POST":
                raise _RefusalError(405, "METHOD", "only POST")
            return _answered({"id": self._start(searches, _object_in(request))})
        if request.method == "DELETE":
            found = b"{}" if searches.cancel(name) else None
        elif request.method == "GET":
            found = searches.describe(name)
        else:
            raise _RefusalError(405, "METHOD", "only GET and DELETE")
        if found is None:
            raise _RefusalError(404, "NOT_FOUND", "the console has forgotten this search")
        return Response(200, found, _JSON)

    def _start(self, searches: Searches, sent: Mapping[str, Any]) -> str:
        names = {row["stream"] for row in self.view.streams.rows}
        try:
            bounds = self.bounds
            most = bounds.max_trace_records if sent.get("ways") == "no" else bounds.max_records
            files = bounds.job_files
            question = read_form(sent, streams=names, max_records=most, job_files=files)
            return searches.start(question)
        except FormError as error:
            raise _RefusalError(400, "FORM", str(error), error.fields) from None
        except TooManySearchesError as error:
            raise _RefusalError(429, "TOO_MANY_SEARCHES", str(error)) from None

    async def _act(self, request: Request, peer: str) -> Mapping[str, Any]:
        if request.method != "POST":
            raise _RefusalError(405, "METHOD", "only POST")
        shown = request.headers.get("authorization", "")
        if self.access.may_only_look(shown):
            what = "that token is for looking; to act takes the other one"
            raise _RefusalError(403, "LOOK_ONLY", what)
        if not self.access.may_act(shown):
            what = "that is not the console's token" if self.access.acts else "there is no token"
            raise _RefusalError(401, "TOKEN", what)
        wanted = _object_in(request)
        tracer, failure = self.tracer, "failed"
        span = None if tracer is None else tracer.start_rare("action", kind="SERVER")
        try:
            done = await self._done(wanted, peer)
            failure = ""
        except NoActionError as error:
            raise _RefusalError(400, "BAD_REQUEST", str(error)) from None
        finally:
            if tracer is not None and span is not None:
                action = {"penstock.action": str(wanted.get("action"))[:64]}
                tracer.end(span, error=failure, attributes=action)
        return done

    async def _done(self, wanted: Mapping[str, Any], peer: str) -> Mapping[str, Any]:
        if is_dead_letter_action(wanted):
            return await act_on_dead_letters(self.routers, wanted, peer=peer)
        return {"done": await act(self._reachable(), wanted, peer=peer)}

    def _token(self, shown: str) -> Mapping[str, Any]:
        access = self.access
        known = access.takes(shown)
        if shown and not known:
            access.refused += 1
        return {
            "may": access.may(shown),
            "is_known": known,
            "acts": access.acts,
            "looks": access.looks,
        }

    def _history(self, query: str) -> Mapping[str, Any]:
        asked = _fields(query)
        found = self.history(*(asked.get(name, "") for name in ("kind", "name", "span")))
        if found is None:
            raise _RefusalError(400, "BAD_REQUEST", "span: 15m, 6h or 7d")
        return found

    def _reachable(self) -> LogAccess:
        if self.log is None:
            raise _RefusalError(404, "NO_LOG", _NO_LOG)
        return self.log


def record_query_of(query: str) -> RecordQuery:
    """Read the query of a request for records; an error in it is refused."""
    fields = _fields(query)
    stream = fields.get("stream", "")
    if not stream:
        raise _RefusalError(400, "BAD_REQUEST", "name a stream")
    places = [_PLACE.fullmatch(place) for place in fields.get("at", "0").split(",")]
    if len(places) > PARTITIONS_MAX or not all(places):
        what = f"at: up to {PARTITIONS_MAX} partitions and offsets, as in 0:17,1:4"
        raise _RefusalError(400, "BAD_REQUEST", what)
    at = {int(place[1]): int(place[2]) if place[2] else None for place in places if place}
    subject = fields.get("subject", "")[:_FILTER_CHARACTERS_MAX]
    numbers = {name: fields.get(name, "") for name in ("severity", "since_ms")}
    if not all(_NUMBER.fullmatch(number) for number in numbers.values()):
        raise _RefusalError(400, "BAD_REQUEST", "severity and since_ms are whole numbers")
    return RecordQuery(
        stream, at, subject or None, fields.get("text", "")[:_FILTER_CHARACTERS_MAX],
        severity=int(numbers["severity"] or 0), back=fields.get("back") == "1",
        since_ms=int(numbers["since_ms"]) if numbers["since_ms"] else None,
        whole=fields.get("whole") == "1",
    )  # fmt: skip


def _object_in(request: Request) -> dict[str, Any]:
    """The JSON object that a request brings; another body is refused."""
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise _RefusalError(415, "BAD_REQUEST", "what is to be done comes as application/json")
    try:
        found = json.loads(request.body if isinstance(request.body, bytes) else b"")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise _RefusalError(400, "BAD_REQUEST", "that is no JSON object, or too long")
    return found


def _fields(query: str) -> dict[str, str]:
    try:
        return {name: values[0] for name, values in parse_qs(query, max_num_fields=16).items()}
    except ValueError:
        return {}


class _RefusalError(Exception):
    """A request that gets no more than the reason."""

    def __init__(
        self, status: int, code: str, message: str, fields: Mapping[str, str] | None = None
    ) -> None:
        self.status = status
        self.code = code
        self.fields = fields
        super().__init__(message)

    def response(self) -> Response:
        said: dict[str, Any] = {"error": str(self), "code": self.code}
        if self.fields is not None:
            said["fields"] = self.fields
        return Response(self.status, json.dumps(said).encode(), _JSON)


def _answered(document: Mapping[str, Any]) -> Response:
    return Response(200, json.dumps(document).encode(), _JSON)
