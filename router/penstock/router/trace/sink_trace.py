"""What became of records at one sink: its position, its batches, its dead letters, its transforms.

Transforms are done to the record itself, by the code that does them to a batch. What `dedupe`
decided is looked up in its notes and never decided again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from threading import Event
from typing import Any, Final

import pyarrow as pa

from penstock.base.clock import BlockingClock
from penstock.logd.format.subjects import matches
from penstock.router.checkpoint.deliveries import Delivery, deliveries_of
from penstock.router.checkpoint.local import StartingOffsets, committed_offsets, offsets_in_work
from penstock.router.deadletters.files import DeadLetter, DeadLetterFile, dead_letters_at
from penstock.router.errors import UnavailableError as NotNowError
from penstock.router.job.batch_writer import route_steps
from penstock.router.job.config import JobConfig
from penstock.router.job.route_task import ROUTE_COLUMN, RouteSteps
from penstock.router.read.offsets import Offsets
from penstock.router.sinks import Sink, SinkContext, make_sink
from penstock.router.sinks.http.settings import legible
from penstock.router.telemetry import Meter
from penstock.router.trace.conditions import Routing, looks_at_clock
from penstock.router.trace.records import ReadRecords
from penstock.router.trace.verdict import Fate, Verdict, Wanted
from penstock.router.transforms import Again
from penstock.router.transforms.sql import SQL_COLUMN
from penstock.service import ConfigError, ServiceError

RECORD_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of a record whose conditions are evaluated: it goes into the heap beside the batches."""

_LEAVES_OUT: Final = {"sample": Fate.SAMPLED, "dedupe": Fate.DEDUPLICATED}


@dataclass(frozen=True, slots=True)
class _Case:
    """One record at one sink.

    Attributes:
        wanted: The record.
        row: Its row; None: it cannot be read.
        routing: What routes do with it; None: they were not evaluated.
        delivery: The batch that went over its offset; None: the journal does not name it.
        is_waiting: Whether the sink has not got so far.
        base: A verdict with what is known in any case.
    """

    wanted: Wanted
    row: pa.Table | None
    routing: Routing | None
    delivery: Delivery | None
    is_waiting: bool
    base: Verdict

    def say(self, fate: Fate, reason: str, **more: Any) -> Verdict:
        """The verdict."""
        return replace(self.base, fate=fate, reason=reason, **more)


class SinkTrace:
    """What became of some records at one sink, by what its files say at one moment.

    Args:
        job: The job.
        name: The sink.
        records: The records.
        wanted: Those that are asked about.
        scratch: A directory that is empty and removed afterwards.
        clock: Time.
    """

    def __init__(
        self,
        job: JobConfig,
        name: str,
        records: ReadRecords,
        *,
        wanted: Sequence[Wanted],
        scratch: Path,
        clock: BlockingClock,
    ) -> None:
        self._job = job
        self._name = name
        self._records = records
        self._home = job.checkpoint_dir.resolve() / name
        self._scratch = scratch
        self._clock = clock
        self._batch = 0
        starting = StartingOffsets(job.checkpoint_dir).load()
        done = committed_offsets(self._home / "spark") or Offsets({})
        self._in_work = offsets_in_work(self._home / "spark")
        self._begins = starting.next
        self._next = {**starting.next, **done.next}
        self._ids = {**starting.stream_ids, **done.stream_ids}
        self._generations = dict(done.generations)
        positions = [(it.at, it.offset) for it in wanted]
        self._deliveries = deliveries_of(self._home, positions, self._ids)
        self._problem = ""
        self._dead: Mapping[tuple[str, int, int], tuple[DeadLetterFile, DeadLetter]] = {}
        try:
            places = {(*it.at, it.offset) for it in wanted}
            self._dead = dead_letters_at(job.dead_letters, name, places, self._ids)
        except ServiceError as error:
            self._problem = f"its dead letters cannot be read: {error.reason}"

    def verdict(self, wanted: Wanted, row: pa.Table | None, routing: Routing | None) -> Verdict:
        """Say what became of one record."""
        delivery = self._deliveries.get((wanted.at, wanted.offset))
        next_ = self._next.get(wanted.at)
        base = Verdict(
            self._name,
            self._job.sinks[self._name].type,
            Fate.UNKNOWN,
            batch=None if delivery is None else delivery.batch,
            time_ns=None if delivery is None else delivery.time_ns,
        )
        is_waiting = next_ is None or wanted.offset >= next_
        case = _Case(wanted, row, routing, delivery, is_waiting, base)
        for look in (self._not_read, self._of_other_stream, self._refused, self._gone, self._doubt):
            if (found := look(case)) is not None:
                return found
        assert row is not None, "else it is gone"
        assert routing is not None, "else there is a doubt"
        number = routing.routes.get(self._name)
        if number is None:
            return case.say(Fate.NOT_ROUTED, "no route leads it to the sink")
        case = replace(case, base=replace(base, route=self._job.route_name(number)))
        if row.column("malformed")[0].as_py() and self._job.sends_malformed_to_dlq:
            return self._malformed(case, row)
        if self._name in routing.left_out:
            key = f"{self._job.route_key(number)}.transforms.0.sql"
            return case.say(
                Fate.NOT_ROUTED, "the WHERE of its route's step sql is not true", step=key
            )
        fields = pa.array([routing.fields.get(self._name)], pa.string())
        return self._by_transforms(case, row.append_column(SQL_COLUMN, fields), number)

    def _malformed(self, case: _Case, row: pa.Table) -> Verdict:
        if case.is_waiting:
            return self._waiting(case)
        why = row.column("malformed_reason")[0].as_py()
        return case.say(Fate.UNKNOWN, f"it is no record ({why}), and its dead letter is gone")

    def _by_transforms(self, case: _Case, row: pa.Table, number: int) -> Verdict:
        """The verdict on a record that a route leads to the sink."""
        try:
            base, done = self._transformed(case.base, row, number)
        except ConfigError as error:  # what dedupe decided is not noted
            return self._waiting(case) if case.is_waiting else case.say(Fate.UNKNOWN, error.reason)
        if base.fate in _LEAVES_OUT.values():
            return base
        if case.is_waiting:
            return self._waiting(case)
        if done is None:
            why = "a transform of its route refused it, and its dead letter is gone"
            return case.say(Fate.UNKNOWN, why)
        return self._located(replace(base, fate=Fate.DELIVERED), done)

    def _of_other_stream(self, case: _Case) -> Verdict | None:
        stream = case.wanted.at.stream
        known, there = self._ids.get(stream), self._records.stream_ids[stream]
        if not known or known == there:
            return None
        return case.say(
            Fate.UNKNOWN,
            f"the sink has read an earlier stream named {stream} (id {known[:8]}), and this one"
            f" has the id {there[:8]}",
        )

    def _not_read(self, case: _Case) -> Verdict | None:
        """The verdict where the job leaves the record out before it looks at routes."""
        at, subject = case.wanted.at, self._job.source.subject
        if not self._job.subscription.covers(at):
            why = f"source.assign does not name partition {at.partition} of {at.stream}"
            return case.say(Fate.NOT_READ, why)
        if subject is not None and case.row is not None:
            own = str(case.row.column("subject")[0].as_py())
            if not matches(subject, own):
                why = f"source.subject is {subject}, and the record's subject {own}"
                return case.say(Fate.NOT_READ, why)
        begin = self._begins.get(at)
        if begin is not None and case.wanted.offset < begin:
            return case.say(Fate.NOT_READ, f"the job began to read there at offset {begin}")
        if begin is None and at.stream not in self._ids and self._job.starting_offsets == "latest":
            why = "the job has not read the stream yet, and will begin at its end"
            return case.say(Fate.NOT_READ, f"{why} (starting_offsets: latest)")
        return None

    def _refused(self, case: _Case) -> Verdict | None:
        found = self._dead.get((*case.wanted.at, case.wanted.offset))
        if found is None:
            return None
        file, letter = found
        about = {name: letter.get(name) for name in ("code", "status", "attempt", "time")}
        about |= {"file": str(file.path), "state": file.state}
        fate = Fate.REPLAYED if file.state == "done" else Fate.DEAD_LETTER
        if fate is Fate.DEAD_LETTER:
            about["replay"] = f"penstock router dlq replay JOB {file.name}"
        return case.say(fate, str(letter.get("reason") or ""), dead_letter=about)

    def _gone(self, case: _Case) -> Verdict | None:
        """The verdict on a record that cannot be read from the log."""
        if case.row is not None:
            return None
        at, offset = case.wanted.at, case.wanted.offset
        start, end = self._records.readable[at]
        if offset >= end:
            return case.say(Fate.UNKNOWN, f"the log ends before it, at offset {end}")
        next_ = self._next.get(at)
        if case.is_waiting and offset < start:
            return case.say(
                Fate.LOST,
                "the log deleted the record before the sink had read it, by retention or a purge",
                lost=(start, end),
                next=next_,
            )
        why = self._records.missing.get((at, offset), "")
        if offset < start:
            why = f"the log has deleted it and begins at offset {start}"
        went = "has not got so far" if case.is_waiting else "has gone over its offset"
        told = f"the sink {went}, and the record cannot be read any more: {why}"
        return case.say(Fate.UNKNOWN, told, next=next_)

    def _doubt(self, case: _Case) -> Verdict | None:
        """The verdict where routes of today do not tell what became of a record."""
        if case.routing is None:
            return case.say(
                Fate.UNKNOWN,
                f"the record is larger than {RECORD_BYTES_MAX} bytes, and its routes are not"
                " evaluated beside the job",
            )
        if case.is_waiting:
            return None
        if self._problem:
            return case.say(Fate.UNKNOWN, self._problem)
        delivery = case.delivery
        if delivery is not None and delivery.routing != self._job.routing_digest:
            return case.say(
                Fate.UNKNOWN,
                f"batch {delivery.batch} was delivered by other routes than the job has now, and"
                " what those did to the record is not known",
            )
        clocks = [
            it.name
            for it in self._job.routes
            if looks_at_clock(it.where) or any(looks_at_clock(step.sql) for step in it.transforms)
        ]
        if clocks:
            why = f"route {clocks[0]} depends on when its batch was routed"
            return case.say(Fate.UNKNOWN, why)
        return None

    def _waiting(self, case: _Case) -> Verdict:
        at, offset = case.wanted.at, case.wanted.offset
        next_ = self._next.get(at)
        if next_ is None:
            why = "the sink has not begun to read the partition"
            if at.stream not in self._ids and self._job.starting_offsets != "earliest":
                why += ", and starting_offsets decides whether it will read the record"
            return case.say(Fate.WAITING, why)
        about = {"next": next_, "behind": offset - next_, "batch": None, "time_ns": None}
        if self._in_work is None or offset >= self._in_work[1].next.get(at, 0):
            return case.say(Fate.WAITING, "the sink has not got so far", **about)
        batch = self._in_work[0]
        about["batch"] = batch
        return case.say(Fate.WAITING, f"batch {batch}, which has it, is in work", **about)

    @cached_property
    def _context(self) -> SinkContext:
        return SinkContext(
            job=self._job.job,
            sink=self._name,
            stream_ids=dict(self._ids),
            generations=self._generations,
            state_dir=self._scratch,
            dead_letters=self._scratch / "dead_letters",
            meter=Meter(),
            stop=Event(),
            clock=self._clock,
        )

    @cached_property
    def _sink(self) -> Sink:
        return make_sink(legible(self._job.sinks[self._name]), self._context)

    @cached_property
    def _steps(self) -> RouteSteps:
        again = Again(self._home, must_be_noted=True)
        return route_steps(self._job, self._sink, self._context, again=again)

    def _transformed(
        self, base: Verdict, row: pa.Table, number: int
    ) -> tuple[Verdict, pa.Table | None]:
        """What transforms make of a record; no row where they leave it out or refuse it.

        Raises:
            ConfigError: What `dedupe` decided is not noted.
        """
        numbered = row.append_column(ROUTE_COLUMN, pa.array([number], pa.int32()))
        rows, _ = self._steps.divide(numbered.select(self._steps.columns))
        if number not in self._job.transforms_to(self._name):
            names = [it for it in rows.column_names if it != ROUTE_COLUMN]
            return base, rows.select(names)
        changed: dict[int, list[tuple[str, int]]] = {}
        self._batch += 1
        done = self._steps.transform(rows, self._batch, changed=changed)
        if done.refused.num_rows:
            return base, None
        if done.rows.num_rows:
            return base, done.rows
        # Steps behind the one that left it out had no row, and so changed none.
        index, verb = [(at, verb) for at, (verb, count) in enumerate(changed[number]) if count][-1]
        step = f"{self._job.route_key(number)}.transforms.{index}.{verb}"
        reason = f"{verb} of route {self._job.route_name(number)} left it out"
        return replace(base, fate=_LEAVES_OUT[verb], step=step, reason=reason), None

    def _located(self, base: Verdict, row: pa.Table) -> Verdict:
        """The verdict with the file or key at the destination, where the sink can say it."""
        notes = []
        if base.batch is None:
            notes.append("the journal does not name its batch: the routes are taken as unchanged")
        found = None
        locate = getattr(self._sink, "locate", None)  # a package's sink need not have it
        try:
            found = None if locate is None else locate(row)
        except LookupError as error:
            notes.append(f"{error}: it was removed since, by retention or another tool")
        except (NotNowError, ServiceError, OSError) as error:
            notes.append(f"where it is cannot be asked now: {error}")
        return replace(base, found=found, notes=tuple(notes))
