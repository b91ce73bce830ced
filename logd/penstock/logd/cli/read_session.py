"""What the clients of one reading command share: patience with logd, and damage that was skipped.

A command that has begun to read goes on when logd comes back, and says once that it waits. With
`--skip-damaged` it reads past what logd calls damaged (`CORRUPT`, with the offset behind it).
Without a filter logd sends what is on its disk and does not look at it; so what came damaged is
asked for once more with one, for which logd looks at each frame.
"""

import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, TypeVar

import click
from typing_extensions import override

from penstock.base.clock import monotonic_ns
from penstock.base.errors import DamagedDataError
from penstock.base.pluralize import pluralize
from penstock.logd.cli.text import safe
from penstock.logd.client import Access, Fetched, LogClient
from penstock.logd.client.calls import Call
from penstock.logd.client.following import Patience, passes
from penstock.logd.errors import CorruptError, RefusedError, UnavailableError
from penstock.logd.store.damage import DamagedRanges

Answer = TypeVar("Answer")
Function = TypeVar("Function", bound=Callable[..., object])

RETRY_S: Final = 60.0
"""Seconds that logd may be away from a command that reads a range; one that follows waits on."""

_MENDED_S: Final = 5.0
"""Seconds that a cluster gets to read a damaged frame from another replica before it is skipped."""
_MENDING_PAUSE_S: Final = 0.2
_RANGES_SHOWN: Final = 20
_ANY_SUBJECT: Final = ">"

skip_damaged_option: Final = click.option(
    "--skip-damaged",
    is_flag=True,
    help="Read past damaged records and report which; exit code 65 if there were any.",
)


class ReadSession:
    """Makes the clients of one command.

    Args:
        skip_damaged: Whether damage is skipped; else it is an error.
        retry_s: Seconds that logd may be away once a partition was read; None: for ever.
    """

    def __init__(self, *, skip_damaged: bool = False, retry_s: float | None = RETRY_S) -> None:
        self.skips = skip_damaged
        self.retry_s = retry_s
        self.may_be_mended = True
        self._lock = threading.Lock()
        self._skipped: dict[tuple[str, int], DamagedRanges] = {}

    def client(self, server: str, *, access: Access) -> LogClient:
        """A client; each is for one thread."""
        return _Reader(server, access=access, session=self)

    def skipped(self) -> list[dict[str, Any]]:
        """The ranges that were skipped: stream, partition, first and upto (exclusive)."""
        with self._lock:
            found = sorted(self._skipped.items())
        return [
            {"stream": stream, "partition": partition, "first": first, "upto": upto}
            for (stream, partition), ranges in found
            for first, upto in ranges.within(0, 1 << 63)
        ]

    def skip(self, stream: str, partition: int, first: int, upto: int) -> None:
        """Note that a range was skipped."""
        with self._lock:
            ranges = self._skipped.setdefault((stream, partition), DamagedRanges())
        ranges.add(first, upto)

    def check_complete(self) -> None:
        """Report what was skipped.

        Raises:
            DamagedDataError: Something was.
        """
        check_none_skipped(self.skipped())


def check_none_skipped(skipped: list[dict[str, Any]]) -> None:
    """Report ranges that were skipped, as `ReadSession.skipped` gives them.

    Raises:
        DamagedDataError: There are some.
    """
    if not skipped:
        return
    count = sum(one["upto"] - one["first"] for one in skipped)
    where = [
        f"{one['stream']}/{one['partition']} from offset {one['first']} to {one['upto']}"
        for one in skipped[:_RANGES_SHOWN]
    ]
    more = len(skipped) - len(where)
    where += [f"{pluralize(more, 'range')} more"] if more else []
    raise DamagedDataError(
        f"{pluralize(count, 'damaged offset', form=',')} skipped: {', '.join(where)} (exclusive)",
        fix="everything else was read; see what is damaged: penstock logd gaps",
    )


class _Reader(LogClient):
    """A client of a session."""

    def __init__(self, server: str, *, access: Access, session: ReadSession) -> None:
        super().__init__(server, access=access)
        self._session = session
        self._has_read = False

    @override
    def _call(self, call: Call[Answer]) -> Answer:
        if not self._session.skips or call.request["api"] != "fetch":
            return self._patiently(call)
        try:
            return self._patiently(call)
        except CorruptError:  # one frame: of several, empty ones would be left out like a gap
            looked_at = {"subject": _ANY_SUBJECT, "bytes_max": 1, "wait_ms_max": 0}
            call = replace(call, request=looked_at | call.request | {"bytes_max": 1})
            return self._skipping(call)
        except RefusedError as error:
            return self._past(call, error)

    def _skipping(self, call: Call[Answer]) -> Answer:
        try:
            return self._patiently(call)
        except RefusedError as error:
            return self._past(call, error)

    def _past(self, call: Call[Answer], error: RefusedError) -> Answer:
        """An answer without frames that goes on behind the damage which a refusal names.

        Raises:
            RefusedError: It is about something else.
        """
        request = call.request
        mended = self._mended(call, error)
        if mended is not None:
            return mended
        first = int(request["offset"])
        upto = int(error.detail["next_offset"])
        answer, upto = self._behind(call, upto)
        self._session.skip(request["stream"], request["partition"], first, upto)
        assert isinstance(answer, Fetched)
        return replace(answer, frames=[], next_offset=upto)

    def _mended(self, call: Call[Answer], error: RefusedError) -> Answer | None:
        """The answer, if a cluster has it from another replica soon."""
        until_ns = monotonic_ns() + _MENDED_S * 1e9
        while error.code == "CORRUPT" and "next_offset" in error.detail:
            if not self._session.may_be_mended or not self._has_copies(call):
                return None
            if monotonic_ns() >= until_ns:
                self._session.may_be_mended = False
                return None
            time.sleep(_MENDING_PAUSE_S)
            try:
                return self._patiently(call)
            except RefusedError as again:
                error = again
        raise error

    def _has_copies(self, call: Call[Answer]) -> bool:
        request = call.request
        parts = self.stream(request["stream"]).partitions
        return any(len(p.replicas) > 1 for p in parts if p.partition == request["partition"])

    def _behind(self, call: Call[Answer], offset: int) -> tuple[Answer, int]:
        """The answer at an offset, or at the end of what can be read if that is below."""
        there = call.request | {"offset": offset, "bytes_max": 1, "wait_ms_max": 0}
        there.pop("bytes_min", None)
        try:
            return self._patiently(replace(call, request=there)), offset
        except RefusedError as error:
            if error.code == "CORRUPT" and "next_offset" in error.detail:
                return self._behind(call, int(error.detail["next_offset"]))
            if error.code != "OUT_OF_RANGE" or int(error.detail["latest"]) >= offset:
                raise
            return self._behind(call, int(error.detail["latest"]))

    def _patiently(self, call: Call[Answer]) -> Answer:
        patience = Patience(self._session.retry_s, random.Random())  # noqa: S311 - jitter
        waits = False
        while True:
            try:
                answer = super()._call(call)
            except (UnavailableError, RefusedError) as error:
                if isinstance(error, RefusedError) and not passes(error):
                    raise
                if not self._has_read or not call.repeatable:
                    raise
                pause_s = patience.pause(error, monotonic_ns())
                if not waits:
                    waits = True
                    click.echo(f"{safe(str(error))}; it is tried again", err=True)
                time.sleep(pause_s)
                continue
            if waits:
                click.echo("logd answers again; reading goes on", err=True)
            self._has_read = self._has_read or call.to is not None
            return answer
