"""Decides what became of records at one sink: by position, batches, dead letters, transforms.

Transforms are done to the record itself, by the code that does them to a batch. What `dedupe`
decided is looked up in its notes and never decided again.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from threading import Event
from typing import Any, Final

import pyarrow as pa

from penstock.base.clock import BlockingClock
from penstock.logd.format.subjects import matches
from penstock.router.checkpoint.deliveries import Delivery, RecordPosition, deliveries_of
from penstock.router.checkpoint.local import StartingOffsets, committed_offsets, offsets_in_work
from penstock.router.deadletters.replayable import DeadLetter, DeadLetterFile, dead_letters_at
from penstock.router.delivery.batch_names import RowPosition, positions_of
from penstock.router.errors import UnavailableError as NotNowError
from penstock.router.job.batch_writer import route_steps
from penstock.router.job.config import JobConfig
from penstock.router.job.route_task import ROUTE_COLUMN, RouteSteps
from penstock.router.meter import Meter
from penstock.router.read.offsets import Offsets
from penstock.router.sinks import Sink, SinkContext, make_sink
from penstock.router.sinks.http.settings import legible
from penstock.router.sinks.sink import Gone, Place
from penstock.router.trace.conditions import Routing, looks_at_clock
from penstock.router.trace.records import ReadRecords
from penstock.router.trace.verdict import Fate, Verdict, Wanted
from penstock.router.transforms import Again
from penstock.router.transforms.chain import Followed
from penstock.router.transforms.sql import SQL_COLUMN
from penstock.service import ServiceError

RECORD_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of a record whose conditions are evaluated: it goes into the heap beside the batches."""

_LEAVES_OUT: Final = {"sample": Fate.SAMPLED, "dedupe": Fate.DEDUPLICATED}


@dataclass(frozen=True, slots=True)
class _Case:
    """One record at one sink.

    Attributes:
        wanted: The record.
        row: Number of its row; None: it cannot be read.
        routing: What routes do with it; None: they were not evaluated.
        delivery: The batch that went over its offset; None: the journal does not name it.
        is_waiting: Whether the sink has not got so far.
        base: A verdict with what is known in any case.
        number: Number of the route that leads it to the sink.
    """

    wanted: Wanted
    row: int | None
    routing: Routing | None
    delivery: Delivery | None
    is_waiting: bool
    base: Verdict
    number: int = -1

    def say(self, fate: Fate, reason: str, **more: Any) -> Verdict:
        return replace(self.base, fate=fate, reason=reason, **more)

    @property
    def position(self) -> RowPosition:
        return *self.wanted.at, self.wanted.offset


class SinkTrace:
    """What became of some records at one sink, by what its files say at one moment.

    Args:
        wanted: Those that are asked about.
        scratch: A directory that is empty and removed afterwards.
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
        self._wanted = wanted
        self._home = job.checkpoint_dir.resolve() / name
        self._scratch = scratch
        self._clock = clock
        starting = StartingOffsets(job.checkpoint_dir).load()
        done = committed_offsets(self._home / "spark") or Offsets({})
        self._in_work = offsets_in_work(self._home / "spark")
        self._begins = starting.next
        self._next = {**starting.next, **done.next}
        self._ids = {**starting.stream_ids, **done.stream_ids}
        self._generations = dict(done.generations)
        positions = [(it.at, it.offset) for it in wanted]
        self._deliveries = deliveries_of(self._home, positions, self._ids)
        self._about = records.rows.select(["subject", "malformed", "malformed_reason"]).to_pylist()
        self._routing_digest = job.routing_digest
        self._of_clock = [
            it.name
            for it in job.routes
            if looks_at_clock(it.where) or any(looks_at_clock(step.sql) for step in it.transforms)
        ]
        self._problem = ""
        self._dead: Mapping[RowPosition, tuple[DeadLetterFile, DeadLetter]] = {}
        try:
            places = {(*it.at, it.offset) for it in wanted}
            self._dead = dead_letters_at(job.dead_letters, name, places, self._ids)
        except ServiceError as error:
            self._problem = f"its dead letters cannot be read: {error.reason}"

    def verdicts(self, routing: Mapping[RecordPosition, Routing]) -> dict[Wanted, Verdict]:
        """Say what became of each record, by what the job's routes do with it."""
        rows = {at: number for number, at in enumerate(positions_of(self._records.rows))}
        found, led = dict[Wanted, Verdict](), list[_Case]()
        for it in self._wanted:
            row = rows.get((*it.at, it.offset))
            case = self._case(it, row, routing.get((it.at, it.offset)))
            if (verdict := self._before_transforms(case)) is not None:
                found[it] = verdict
                continue
            assert case.routing is not None, "else there is a doubt"
            number = case.routing.routes[self._name]
            base = replace(case.base, route=self._job.route_name(number))
            led.append(replace(case, number=number, base=base))
        found |= self._by_transforms(led)
        return {it: found[it] for it in self._wanted}

    def _case(self, wanted: Wanted, row: int | None, routing: Routing | None) -> _Case:
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
        return _Case(wanted, row, routing, delivery, is_waiting, base)

    def _before_transforms(self, case: _Case) -> Verdict | None:
        """The verdict, or None where transforms decide on a record that a route leads here."""
        for look in (self._not_read, self._of_other_stream, self._refused, self._gone, self._doubt):
            if (found := look(case)) is not None:
                return found
        assert case.row is not None, "else it is gone"
        assert case.routing is not None, "else there is a doubt"
        number = case.routing.routes.get(self._name)
        if number is None:
            return case.say(Fate.NOT_ROUTED, "no route leads it to the sink")
        route = self._job.route_name(number)
        if self._about[case.row]["malformed"] and self._job.sends_malformed_to_dlq:
            return replace(self._malformed(case, self._about[case.row]), route=route)
        if self._name in case.routing.left_out:
            key = f"{self._job.route_key(number)}.transforms.0.sql"
            why = "the WHERE of its route's step sql is not true"
            return case.say(Fate.NOT_ROUTED, why, step=key, route=route)
        return None

    def _malformed(self, case: _Case, about: Mapping[str, Any]) -> Verdict:
        if case.is_waiting:
            return self._waiting(case)
        why = about["malformed_reason"]
        return case.say(Fate.UNKNOWN, f"it is no record ({why}), and its dead letter is gone")

    def _by_transforms(self, cases: Sequence[_Case]) -> dict[Wanted, Verdict]:
        """The verdicts on records that routes lead to the sink."""
        followed = self._followed(cases)
        found, delivered = dict[Wanted, Verdict](), list[_Case]()
        for case in cases:
            done = followed[case.number]
            if (index := done.left_out.get(case.position)) is not None:
                found[case.wanted] = self._left_out(case, index)
            elif case.is_waiting:
                found[case.wanted] = self._waiting(case)
            elif case.position in done.undecided:
                why = "whether dedupe left it out is not noted, or no longer"
                found[case.wanted] = case.say(Fate.UNKNOWN, why)
            elif case.position in done.refused:
                why = "a transform of its route refused it, and its dead letter is gone"
                found[case.wanted] = case.say(Fate.UNKNOWN, why)
            else:
                delivered.append(case)
        places = self._places(followed, {it.position for it in delivered})
        for case in delivered:
            found[case.wanted] = _located(case.base, *places[case.position])
        return found

    def _followed(self, cases: Sequence[_Case]) -> dict[int, Followed]:
        """What transforms make of records, by the number of their route."""
        if not cases:
            return {}
        once = {case.row: case for case in cases if case.row is not None}
        rows = self._records.rows.take(pa.array(list(once), pa.int64()))
        set_by = [(it.routing.fields if it.routing else {}).get(self._name) for it in once.values()]
        numbers = [case.number for case in once.values()]
        rows = rows.append_column(SQL_COLUMN, pa.array(set_by, pa.string()))
        return self._steps.follow(rows.append_column(ROUTE_COLUMN, pa.array(numbers, pa.int32())))

    def _left_out(self, case: _Case, index: int) -> Verdict:
        verb = self._job.transforms_to(self._name)[case.number][index].verb
        step = f"{self._job.route_key(case.number)}.transforms.{index}.{verb}"
        reason = f"{verb} of route {self._job.route_name(case.number)} left it out"
        return case.say(_LEAVES_OUT[verb], reason, step=step)

    def _places(
        self, followed: Mapping[int, Followed], delivered: Collection[RowPosition]
    ) -> dict[RowPosition, tuple[Place, str]]:
        """Where the destination has delivered records, and why that cannot be asked now."""
        found = dict[RowPosition, tuple[Place, str]]()
        locate = getattr(self._sink, "locate", None)  # a package's sink need not have it
        for done in followed.values():
            mine = [it in delivered for it in done.positions]
            positions = [it for it, wanted in zip(done.positions, mine, strict=True) if wanted]
            found |= dict.fromkeys(positions, (None, ""))
            if locate is None or not positions:
                continue
            try:
                places = locate(done.rows.filter(pa.array(mine, pa.bool_())))
            except (NotNowError, ServiceError, OSError) as error:
                found |= dict.fromkeys(positions, (None, str(error)))
            else:
                found |= {at: (place, "") for at, place in zip(positions, places, strict=True)}
        return found

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
            own = str(self._about[case.row]["subject"])
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
        if delivery is not None and delivery.routing != self._routing_digest:
            return case.say(
                Fate.UNKNOWN,
                f"batch {delivery.batch} was delivered by other routes than the job has now, and"
                " what those did to the record is not known",
            )
        if self._of_clock:
            why = f"route {self._of_clock[0]} depends on when its batch was routed"
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


def _located(base: Verdict, place: Place, problem: str) -> Verdict:
    """The verdict on a delivered record with its file or key, where the sink can say it."""
    notes = []
    if base.batch is None:
        notes.append("the journal does not name its batch: the routes are taken as unchanged")
    if isinstance(place, Gone):
        why = "it was removed, or was too old for the sink when it came"
        notes.append(f"{place.where} does not have it: {why}")
    if problem:
        notes.append(f"where it is cannot be asked now: {problem}")
    found = place if isinstance(place, str) else None
    return replace(base, fate=Fate.DELIVERED, found=found, notes=tuple(notes))
