"""Where the keys of tokens come from: a file, or an https URL that is asked again and again.

An answer is bounded in size and time and is not followed elsewhere. A URL that does not answer, or
says rubbish, changes nothing for a time: the keys before stay. Then they are stale, and no token is
taken any more: one of them may have been taken back. A token whose key is not known has the URL
asked at once, but not more often than every `REFRESH_S_MIN` seconds: forged tokens must not make
logd flood whoever issues them.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Final, Protocol

import structlog

from penstock.base.clock import Clock
from penstock.base.http.client import AnswerTooLargeError, HttpClient, Request, target_of
from penstock.logd.errors import CorruptError, UnavailableError
from penstock.logd.limits import KEY_SET_SIZE_MAX
from penstock.logd.security.key_set import KeySet, parse_key_set
from penstock.logd.security.renewal import Renewed
from penstock.logd.security.tls import TlsSource

REFRESH_S_MIN: Final = 10.0
"""Seconds between two questions that unknown keys give rise to."""

_WHOLE_S: Final = 10.0
"""Seconds until an answer must be whole."""

_EMPTY: Final = KeySet({})
_log = structlog.get_logger()

Fetch = Callable[[], bytes]


class TokenKeys(Protocol):
    """Keys that may have signed a token. Used on any thread."""

    @property
    def keys(self) -> KeySet:
        """Those known now; none when they are stale."""

    @property
    def stale(self) -> bool:
        """Whether it is too long since they were known to be the right ones."""

    @property
    def problem(self) -> str:
        """Why these may not be the right ones; empty when they are."""

    def look(self, *, anyway: bool = False) -> None:
        """Read or ask again, if it is time to, or `anyway`."""

    def search(self) -> Future[None] | None:
        """A key is missing: ask again soon; when that is done. None: asked a moment ago."""


class _Standing:
    """Keys, and since when nobody has confirmed them: whoever issues them may have taken one back.

    Args:
        keys: At first.
        clock: For their age.
        age_s_max: Beyond which they are not used any more.
    """

    def __init__(self, keys: KeySet, clock: Clock, age_s_max: float) -> None:
        self._keys = keys
        self._clock = clock
        self._age_s_max = age_s_max
        self._confirmed_ns = clock.monotonic_ns()

    def confirm(self, keys: KeySet) -> None:
        """These are the right ones now."""
        self._confirmed_ns = self._clock.monotonic_ns()
        self._keys = keys

    @property
    def stale(self) -> bool:
        return self._clock.monotonic_ns() - self._confirmed_ns > self._age_s_max * 1e9

    @property
    def keys(self) -> KeySet:
        return _EMPTY if self.stale else self._keys

    def told(self, problem: str) -> str:
        """A problem, with what it has come to."""
        if not self.stale:
            return problem
        since = f"for {self._age_s_max:g} s nothing has confirmed the keys"
        return f"{problem or 'auth.tokens'}; no token is taken any more: {since}"


class FileKeys:
    """Keys of a file. As `TokenKeys`.

    Args:
        path: The file.
        clock: For the keys' age.
        age_s_max: For how long they are good when the file has gone, or is not sound.

    Raises:
        CorruptError: It has none.
        OSError: It cannot be read.
    """

    def __init__(self, path: Path, clock: Clock, *, age_s_max: float) -> None:
        self._held = Renewed("auth.tokens.jwks_file", (path,), lambda: _read(path))
        self._standing = _Standing(self._held.value, clock, age_s_max)

    @property
    def keys(self) -> KeySet:
        """As `TokenKeys`."""
        return self._standing.keys

    @property
    def stale(self) -> bool:
        """As `TokenKeys`."""
        return self._standing.stale

    @property
    def problem(self) -> str:
        """As `TokenKeys`."""
        return self._standing.told(self._held.problem)

    def look(self, *, anyway: bool = False) -> None:
        """As `TokenKeys`."""
        self._held.look(anyway=anyway)
        if not self._held.problem:
            self._standing.confirm(self._held.value)

    def search(self) -> Future[None] | None:
        """As `TokenKeys`; the file has been looked at within the last second."""
        return None


class UrlKeys:
    """Keys of a URL. As `TokenKeys`; at first there are none.

    One question at a time is under way, on a thread of its own: nobody else waits for its answer
    but who searches.

    Args:
        fetch: Gets the document; as `fetcher` makes it.
        where: The URL, for people.
        worker: Asks.
        clock: For the pauses.
        refresh_s: Seconds after which it is asked again in any case.
        age_s_max: Seconds without an answer after which the keys before are used no more.
    """

    def __init__(
        self,
        fetch: Fetch,
        *,
        where: str,
        worker: Executor,
        clock: Clock,
        refresh_s: float,
        age_s_max: float,
    ) -> None:
        self._problem = f"auth.tokens.jwks_url: {where} has not answered yet"
        self._standing = _Standing(_EMPTY, clock, age_s_max)
        self._fetch = fetch
        self._where = where
        self._worker = worker
        self._clock = clock
        self._refresh_ns = int(refresh_s * 1e9)
        self._lock = threading.Lock()
        self._asked_ns: int | None = None
        self._asking: Future[None] | None = None

    @property
    def keys(self) -> KeySet:
        """As `TokenKeys`."""
        return self._standing.keys

    @property
    def stale(self) -> bool:
        """As `TokenKeys`."""
        return self._standing.stale

    @property
    def problem(self) -> str:
        """As `TokenKeys`."""
        return self._standing.told(self._problem)

    def look(self, *, anyway: bool = False) -> None:
        """As `TokenKeys`."""
        self._ask(0 if anyway else int(REFRESH_S_MIN * 1e9) if self._problem else self._refresh_ns)

    def search(self) -> Future[None] | None:
        """As `TokenKeys`; those who search at the same time wait for the same answer."""
        return self._ask(int(REFRESH_S_MIN * 1e9))

    def _ask(self, age_ns: int) -> Future[None] | None:
        """Ask, unless that has begun less than `age_ns` ago; when the answer is there."""
        with self._lock:
            if self._asking is not None and not self._asking.done():
                return self._asking
            now_ns = self._clock.monotonic_ns()
            if self._asked_ns is not None and now_ns - self._asked_ns < age_ns:
                return None
            self._asked_ns = now_ns
            with suppress(RuntimeError):  # logd stops, and the worker takes nothing more
                self._asking = self._worker.submit(self._take_answer)
            return self._asking

    def _take_answer(self) -> None:
        try:
            keys = parse_key_set(self._fetch(), where=self._where)
        except (UnavailableError, CorruptError) as error:
            problem = f"auth.tokens.jwks_url: {error}"
            if problem != self._problem:
                _log.error("keys of tokens not to be had, the old ones are kept", reason=problem)
            self._problem = problem
        else:
            self._standing.confirm(keys)
            self._problem = ""


def fetcher(url: str, tls: TlsSource, clock: Clock, *, whole_s: float = _WHOLE_S) -> Fetch:
    """What gets a document from an https URL.

    Args:
        url: `https://HOST[:PORT]/PATH`.
        tls: Whom to trust.
        clock: Bounds the whole.
        whole_s: Seconds until an answer must be whole.
    """
    request = Request(target_of(url), {"Accept": "application/json"})

    def fetch() -> bytes:
        with HttpClient(
            url, timeout_s=whole_s, body_bytes_max=KEY_SET_SIZE_MAX, tls=tls(), clock=clock
        ) as client:
            try:
                answer = client.send(request)
            except AnswerTooLargeError:
                raise CorruptError(f"has more than {KEY_SET_SIZE_MAX} bytes", where=url) from None
            except TimeoutError:
                problem = f"no whole answer within {whole_s:g} s"
                raise UnavailableError(f"{url}: {problem}") from None
            except OSError as error:
                raise UnavailableError(f"{url}: {str(error) or type(error).__name__}") from None
        if answer.status != HTTPStatus.OK:
            raise UnavailableError(f"{url}: answers {answer.status}, not 200")
        return answer.body

    return fetch


def _read(path: Path) -> KeySet:
    with path.open("rb") as file:
        return parse_key_set(file.read(KEY_SET_SIZE_MAX + 1), where=str(path))
