"""One logd and its NATS server under acked load; each stream is read back after each fault."""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson
from typing_extensions import override

from tests.harness.checkers.stream import StreamChecker
from tests.harness.faults.process import kill_again_while_it_starts, stop_daemon
from tests.harness.load import Load
from tests.harness.plan import Run, System
from tests.harness.publishers import Publisher
from tests.support.logd import Logd
from tests.support.nats_server import RestartableNatsServer
from tests.support.processes import Daemon
from tests.support.waiting import PATIENCE, wait_until

_WHOLE_EVERY: Final = 20
_OFFLINE_EVERY: Final = 10
_OFFLINE_S: Final = 300
_CLEAN_S: Final = 30
_AGAIN_SHARE: Final = 0.15
"""Of the starts, those in which logd is killed before it may be ready."""

_ROW: Final = re.compile(r"row='(\w)'")
"""Of the recovery table (`penstock.logd.storage.recovery`), in a finding as it is logged."""


class _Cleaned(NamedTuple):
    passes: int
    segments_replaced: int


class LogdUnderLoad(System):
    """Kills are for faults; `recover` starts it again and reads what is there.

    Args:
        run: Says where, and what to run as logd.
        streams: As in the configuration file.
        publishers: Of these.
        checkers: One for each stream.
        options: Further keys of the configuration.
    """

    def __init__(
        self,
        run: Run,
        streams: list[dict[str, Any]],
        publishers: Sequence[Publisher],
        checkers: Sequence[StreamChecker],
        **options: Any,
    ) -> None:
        super().__init__(run)
        self.nats = RestartableNatsServer(run.directory / "nats")
        self._logd = Logd(
            run.directory / "logd", self.nats.url, streams, program=run.program, **options
        )
        self._streams = [str(stream["name"]) for stream in streams]
        self._compacted = [str(stream["name"]) for stream in streams if stream.get("compact")]
        self._checkers = checkers
        self._load = Load(self.nats.url, publishers)

    @property
    def daemon(self) -> Daemon:
        return self._logd.daemon

    @override
    def begin(self, stack: ExitStack) -> None:
        stack.callback(self._sum_up)
        stack.callback(self.nats.close)
        stack.callback(self.daemon.close)
        self.nats.start()
        self.start()
        stack.enter_context(self._load)

    def start(self) -> None:
        with self.run.report.timed("logd ready"):
            self.daemon.start()

    @override
    def recover(self) -> str:
        if self.run.number % _OFFLINE_EVERY == 0:
            self.check_offline()
        told = ""
        while self.run.rng.random() < _AGAIN_SHARE:
            told += kill_again_while_it_starts(self, 1.2, least_s=0.2) + "; "
        self.start()
        self.check(whole=self.run.number % _WHOLE_EVERY == 0)
        found = sum(checker.counts["acked, found"] for checker in self._checkers)
        ready_s = self.run.report.times_s["logd ready"][-1]
        acked = self._load.ledger.records
        return f"{told}ready after {ready_s:.3f} s; {acked} records acked, {found} found"

    @override
    def conclude(self) -> None:
        self._load.stop()
        self.check(restarted=False, whole=True)
        self._check_balance()
        stop_daemon(self.daemon, self.run)
        self.check_offline()

    def check(self, *, restarted: bool = True, whole: bool = False) -> None:
        """Read every stream, and hold it against what was acked."""
        ledger = self._load.ledger
        self._load.check()
        acked = ledger.take()
        with self._logd.client() as log:
            for checker in self._checkers:
                mine = [ack for ack in acked if ack.stream == checker.stream]
                checker.look(log, mine, restarted=restarted, whole=whole)
        self.run.report.counts["checks"] += 1

    def check_offline(self) -> None:
        """`logd check` on the data of a logd that does not run."""
        command = [sys.executable, "-m", "penstock.logd", "check", "--json"]
        done = subprocess.run(
            [*command, str(self._logd.data_dir)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_OFFLINE_S, check=False,
        )  # fmt: skip
        told = done.stdout.decode()
        self.run.demand(done.returncode == 0, f"offline: exit {done.returncode}: {told[-3000:]}")
        self.run.report.counts[f"offline: {orjson.loads(told)['verdict']}"] += 1

    def let_clean(self) -> None:
        """Let compaction make a pass, for each life of logd is too short for one.

        A pass over very many small segments, on a busy disk, may not come to its end in time; it
        must get on.
        """
        before = self._cleaned()

        def passed() -> bool:
            pairs = zip(self._cleaned(), before, strict=True)
            return all(new.passes > old.passes for new, old in pairs)

        with suppress(AssertionError):
            wait_until(passed, within_s=_CLEAN_S / PATIENCE, what="passes over keys")
            self.run.report.counts["passes over keys"] += 1
            return
        for name, new, old in zip(self._compacted, self._cleaned(), before, strict=True):
            self.run.demand(new != old, f"{name}: compaction did nothing for {_CLEAN_S} s")
        self.run.report.counts["parts of a pass over keys"] += 1

    def _cleaned(self) -> list[_Cleaned]:
        """What compaction has done to each compacted stream in this life of logd."""
        stages = [self._logd.stage(name)["detail"] for name in self._compacted]
        return [
            _Cleaned(int(detail["compaction_passes"]), int(detail["compaction_segments_replaced"]))
            for detail in stages
        ]

    def _check_balance(self) -> None:
        """Nothing arrives any more: what `/status` counts must add up."""
        for stream in self._streams:
            stage = self._logd.stage(stream)
            parts = stage["sent"] + stage["detail"]["duplicates"] + stage["errors"] + stage["lag"]
            self.run.demand(stage["received"] == parts, f"counters do not add up: {stage}")

    def _sum_up(self) -> None:
        counts, ledger = self.run.report.counts, self._load.ledger
        counts += Counter({f"publishers: {what}": n for what, n in ledger.counts.items()})
        counts["acked"] = ledger.records
        for checker in self._checkers:
            counts += checker.counts
        counts += housekeeping_of(self._logd.directory / "logd.log")


def housekeeping_of(log: Path) -> Counter[str]:
    """What retention and compaction did, as logd's log tells it over all its lives."""
    counts: Counter[str] = Counter()
    for line in _json_lines(log):
        match str(line.get("event")):
            case "segments_rewritten":
                counts["segments rewritten or merged"] += int(line["segments"])
                counts["records compacted away"] += int(line["records_removed"])
            case "segment_deleted":
                counts["segments deleted by retention"] += 1
            case "log_recovered":
                for row in _ROW.findall(str(line["finding"])):
                    counts[f"recovery, row {row}"] += 1
            case (
                "compaction_failed"
                | "compaction_crashed"
                | "corrupt_frame_skipped"
                | "stream_failed"
            ):
                counts[f"complaint: {line['event']}"] += 1
            case _:
                pass
    return counts


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines that are whole: a kill may cut one short."""
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            found = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if isinstance(found, dict):
            yield found
