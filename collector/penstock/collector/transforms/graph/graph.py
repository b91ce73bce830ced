"""The running graph: records in, batches by subject and everything that became of them out.

Per record:

    line ─▶ resource, validate ─▶ transforms ─▶ validate again, if one changed it ─▶ redact ─▶
    subject
                │                 │                  │
                └─ quarantine     ├─ quarantine      └─ quarantine, with the transform's name
                                  └─ filtered, sampled, deduplicated, aggregated, throttled

Transforms see only records that keep to their spec. What comes from a source whose records no
transform takes is never parsed here: its bytes go on as they came. So do those of a record that no
transform changed.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Final

from pydantic_core import from_json

from penstock.collector.decode.line_rules import NO_TIME, OnError
from penstock.collector.decode.units import REASON_MAX
from penstock.collector.delivery.ordered_queue import Batch
from penstock.collector.drops.sampler import Drop, DropKind, DropSampler, drop_of
from penstock.collector.transforms.expressions.paths import Fields
from penstock.collector.transforms.expressions.subject_template import SubjectTemplate
from penstock.collector.transforms.graph.wiring import OUTPUT, Wiring
from penstock.collector.transforms.transform import (
    PASS,
    Aggregator,
    DeferredSampler,
    DropReason,
    Event,
    Refusal,
    Split,
    Transform,
)
from penstock.specs.limits import INT64_MIN
from penstock.specs.models.codec import encode_json
from penstock.specs.redact.line_search import LineParts, LineSearch
from penstock.specs.redact.scrubber import Scrubber
from penstock.specs.redact.sensitivity import HashKey
from penstock.specs.subjects import subject_of
from penstock.specs.validate.validator import (
    attach,
    attach_and_check,
    check_line,
    check_together,
)
from penstock.specs.validate.verdict import Accepted, Rejected, Verdicts, distinct


@dataclass(frozen=True, slots=True)
class Chunk:
    """Record lines of one source, read from one origin: a spool or a file.

    Attributes:
        start: Position to read again from, to meet all of them.
        resource: JSON, of the lines without one; empty when all are complete.
        verdicts: The validator's on lines that are complete, of those where it is known already.
        ended: Treatment of records whose time cannot be read, by sequence, unless they are passed
            on.
        parts: The lines' parts, of lines without `resource`; None: they are not known.
        met: Sequences up to which records are not new to transforms, by their names; `""` stands
            for all others.
    """

    source: str
    start: int
    sequences: Sequence[int]
    lines: Sequence[bytes]
    resource: bytes
    observed_ns: int
    verdicts: Sequence[Accepted | None] = ()
    ended: Mapping[int, OnError] = field(default_factory=dict)
    origin: str = ""
    met: Mapping[str, int] = field(default_factory=dict)
    parts: LineParts | None = None

    def complete(self, place: int) -> bytes:
        """Return a line with its resource."""
        line, resource = self.lines[place], self.resource
        return attach(line, resource, self.observed_ns) if resource else line

    def part(self, first: int, end: int) -> "Chunk":
        """Return the chunk of lines `first` up to `end`, exclusive."""
        part = slice(first, end)
        return replace(
            self,
            sequences=self.sequences[part],
            lines=self.lines[part],
            verdicts=self.verdicts[part],
            parts=None if self.parts is None else self.parts.part(part),
        )


@dataclass(frozen=True, slots=True)
class Refused:
    """A line for quarantine, as it came."""

    sequence: int
    reason: str
    line: bytes


@dataclass(slots=True)
class Outcome:
    """The results for a chunk's records and the copies that were made of them.

    Attributes:
        batches: Batches by subject and by number among a record's copies for that subject.
        ended: Number of records that went no further, by reason.
        held: Transforms that took records in, to make other records of them.
        copies: Records besides those that arrived.
        scrubbed: Records that had something sensitive taken out.
        found: Number of findings by detector of sensitive values; `without_key`: pseudonyms that
            were redacted because there is no hash key.
        pause_ns: Nanoseconds that the source must wait before it sends more.
        drops: Records that went no further and are to be recorded.
    """

    batches: dict[tuple[str, int], Batch] = field(default_factory=dict)
    refused: list[Refused] = field(default_factory=list)
    ended: Counter[DropReason] = field(default_factory=Counter)
    held: set[str] = field(default_factory=set)
    copies: int = 0
    scrubbed: int = 0
    found: Counter[str] = field(default_factory=Counter)
    pause_ns: int = 0
    drops: list[Drop] = field(default_factory=list)


_UINT64_MAX: Final = (1 << 64) - 1
_ORIGIN: Final = attrgetter("kind", "service")

Describe = Callable[[DropKind, bytes], Drop]
"""Describes a dropped record by its complete line."""

_DECODE: Final = "decode"
"""The step that drops records whose time cannot be read, before all transforms."""


def without_ended(
    chunk: Chunk, outcome: Outcome, now_ns: int, sampler: DropSampler | None, describe: Describe
) -> Chunk:
    """The records that go on; the outcome says of the others why they do not."""
    kept: list[int] = []
    for place, sequence in enumerate(chunk.sequences):
        match chunk.ended.get(sequence, "pass"):
            case "pass":
                kept.append(place)
            case "filter":
                outcome.ended[DropReason.FILTERED] += 1
                kind = DropKind(chunk.source, _DECODE, DropReason.FILTERED.value)
                if sampler is not None and sampler.chooses(kind, now_ns):
                    outcome.drops.append(describe(kind, chunk.complete(place)))
            case "quarantine":
                outcome.refused.append(Refused(sequence, NO_TIME, chunk.lines[place]))
    return replace(
        chunk,
        sequences=[chunk.sequences[place] for place in kept],
        lines=[chunk.lines[place] for place in kept],
        verdicts=[chunk.verdicts[place] for place in kept] if chunk.verdicts else (),
        parts=None,
    )


def validated_together(chunk: Chunk) -> tuple[Sequence[bytes], Verdicts]:
    """Lines with what was hoisted out of them, and the verdicts on them.

    There is none on a line that must be validated by itself.
    """
    lines, known = chunk.lines, chunk.verdicts
    if not isinstance(known, Verdicts):
        known = Verdicts.of(known or [None] * len(lines))
    if all(known.shapes):
        return lines, known
    missing = [line for line, shape in zip(lines, known.shapes, strict=True) if shape is None]
    whole, verdicts = _completed(missing, chunk)
    if len(missing) == len(lines):
        return whole, Verdicts.of(verdicts)
    others = zip(whole, verdicts, strict=True)
    found = [
        next(others) if verdict is None else (line, verdict)
        for line, verdict in zip(lines, known, strict=True)
    ]
    return [line for line, _ in found], Verdicts.of([verdict for _, verdict in found])


def _completed(
    lines: Sequence[bytes], chunk: Chunk
) -> tuple[Sequence[bytes], Sequence[Accepted | None]]:
    resource, observed_ns = chunk.resource, chunk.observed_ns
    try:
        if resource:
            whole, verdicts = attach_and_check(lines, resource, observed_ns)
        else:
            whole, verdicts = lines, check_together(lines)
    except Exception:  # noqa: BLE001 - validated one by one, the one that raises is found and named
        whole = [attach(line, resource, observed_ns) for line in lines] if resource else lines
        verdicts = None
    return whole, verdicts or [None] * len(whole)


@dataclass(slots=True)
class Step:
    """A transform at its place.

    Attributes:
        targets: Steps after each of its outputs; None is the end of the graph.
        deferred: The transform where it is a `DeferredSampler`. A look at the type of a protocol
            reads each of its properties, which no record may cost.
    """

    name: str
    transform: Transform
    targets: dict[str, list["Step | None"]] = field(default_factory=dict)
    received: int = 0
    sent: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    deferred: DeferredSampler | None = field(init=False)

    def __post_init__(self) -> None:
        """Look at the transform's type."""
        self.deferred = self.transform if isinstance(self.transform, DeferredSampler) else None

    def drops(self, verdict: DropReason) -> bool:
        """Return whether a record of this verdict is gone, and does not come out later."""
        if verdict is DropReason.REPEATED:
            return False  # an earlier process recorded it
        return verdict is not DropReason.AGGREGATED or self.deferred is None


@dataclass(slots=True)
class _Given:
    """The record that is on its way, and what has become of it."""

    line: bytes
    complete: bytes
    accepted: Accepted
    subjects: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Dropped:
    """A record that a transform dropped, to be described."""

    kind: DropKind
    event: Event
    given: _Given


@dataclass(slots=True)
class _Finished:
    """A record that has passed the transforms.

    Attributes:
        line: The record's complete line; of one that a transform changed, once it was written.
        searched: The line that is searched for sensitive values, perhaps without its resource.
        accepted: The verdict on the line; None: it is refused.
        reason: Why it is refused.
        is_suspect: It may hold something sensitive.
    """

    event: Event
    given: _Given
    line: bytes
    searched: bytes
    accepted: Accepted | None
    reason: str = ""
    is_suspect: bool = False


_FINISHED_MAX: Final = 512
"""Records that wait to be validated and searched together; a split may make many of one."""
_FINISHED_BYTES_MAX: Final = 1 << 20
"""Bytes of the lines that they were."""


class Graph:
    """Everything between decoding and delivery, built whole and checked before it is used.

    Args:
        wiring: Wiring of the graph.
        transforms: The transforms by name.
        prefix: First tokens of the subjects when there is no template.
        template: The template of subjects; None: ``<prefix>.{kind}.{service}``.
        scrubber: Takes out what is sensitive, last of all.
    """

    def __init__(
        self,
        wiring: Wiring,
        transforms: Mapping[str, Transform],
        *,
        prefix: str,
        template: SubjectTemplate | None,
        scrubber: Scrubber | None,
    ) -> None:
        self.wiring = wiring
        self.steps = {name: Step(name, transforms[name]) for name in wiring.order}
        for name, step in self.steps.items():
            step.targets = {
                part: self._targets(f"{name}.{part}" if part else name)
                for part in step.transform.outputs
            }
        self._entries = {
            port: self._targets(port) for port in wiring.takers if port not in self.steps
            and port.partition(".")[0] not in self.steps
        }  # fmt: skip
        self._aggregators: dict[str, Aggregator] = {
            name: step.transform
            for name, step in self.steps.items()
            if isinstance(step.transform, Aggregator)
        }
        self._entries |= {name: self.steps[name].targets[PASS] for name in self._aggregators}
        self._prefix = prefix
        self._template = template
        self._scrubber = scrubber
        self._flushed_ns: dict[str, int] = {}

    @property
    def hash_key(self) -> HashKey | None:
        """The key for pseudonyms; the key's file held it when the graph was made."""
        return None if self._scrubber is None else self._scrubber.key

    def _targets(self, port: str) -> list[Step | None]:
        takers = self.wiring.takers[port]
        return [None if taker == OUTPUT else self.steps[taker] for taker in takers]

    def process(self, chunk: Chunk, now_ns: int, sampler: DropSampler | None = None) -> Outcome:
        """Validate, change and route records, whatever they hold.

        Records of an unknown source, as one that was taken out of the configuration while the spool
        held some of its records, go straight to the output.

        Args:
            chunk: The records.
            now_ns: Monotonic time.
            sampler: Chooses the drops that the outcome describes; None: it describes none.
        """
        entry = self._entries.get(chunk.source, [None])
        outcome, scrubber = Outcome(), self._scrubber
        if chunk.ended:
            limit = 0 if sampler is None else sampler.max_text_bytes

            def describe(kind: DropKind, line: bytes) -> Drop:
                try:
                    fields = from_json(line)
                except ValueError:  # it is not validated yet
                    return drop_of(kind, line, {}, 0)
                return self._describe(kind, line, fields, limit)

            chunk = without_ended(chunk, outcome, now_ns, sampler, describe)
        if entry == [None] and self._template is None:
            self._pass_on(chunk, outcome)
        else:
            self._transform(chunk, entry, outcome, now_ns, sampler)
        if scrubber is not None and (scrubber.found or scrubber.keyless):
            outcome.found.update(scrubber.found)
            if keyless := scrubber.keyless.total():
                outcome.found["without_key"] += keyless
            scrubber.found.clear()
            scrubber.keyless.clear()
        return outcome

    # Without transforms.

    def _pass_on(self, chunk: Chunk, outcome: Outcome) -> None:
        """The collector's hottest path: lines are validated and go on as they came."""
        scrubber, search = self._scrubber, self._search(chunk)
        whole, verdicts = validated_together(chunk)
        if self._pass_on_alike(chunk, whole, verdicts, search, outcome):
            return
        for sequence, line, complete, verdict in zip(
            chunk.sequences, chunk.lines, whole, verdicts, strict=True
        ):
            try:
                found = verdict or check_line(complete)
                if isinstance(found, Rejected):
                    outcome.refused.append(Refused(sequence, _reason(found), line))
                    continue
                treated = complete
                if scrubber is not None and not scrubber.is_clean(line, found, search):
                    treated = scrubber.scrub_line(complete)
            except Exception as error:  # noqa: BLE001 - the next record goes on
                outcome.refused.append(Refused(sequence, _failure(error, complete), line))
                continue
            if treated is not complete:
                outcome.scrubbed += 1
            key = (subject_of(found.kind, found.service, self._prefix), 0)
            batch = outcome.batches.get(key)
            if batch is None:
                batch = outcome.batches[key] = Batch(chunk.start)
            batch.sequences.append(sequence)
            batch.timestamps.append(found.time_unix_nano)
            batch.lines.append(treated)
            batch.size += len(treated)

    def _pass_on_alike(
        self,
        chunk: Chunk,
        whole: Sequence[bytes],
        verdicts: Verdicts,
        search: LineSearch,
        outcome: Outcome,
    ) -> bool:
        """Put records of one subject into their batch at once; false when each needs a look."""
        if None in distinct(verdicts.shapes):
            return False
        known = [shape for shape in verdicts.shapes if shape is not None]
        origins = {*map(_ORIGIN, distinct(known))}
        if len(origins) != 1:
            return False
        lines, scrubbed = [*whole], 0
        if (scrubber := self._scrubber) is not None:
            for place in scrubber.suspects(known, search):
                try:
                    lines[place] = scrubber.scrub_line(whole[place])
                except Exception:  # noqa: BLE001 - the look at each refuses this one, and says why
                    return False
                scrubbed += lines[place] is not whole[place]
        (origin,) = origins
        outcome.scrubbed += scrubbed
        outcome.batches[subject_of(*origin, self._prefix), 0] = Batch(
            chunk.start,
            [*chunk.sequences],
            [*verdicts.times],
            lines,
            sum(map(len, lines)),
        )
        return True

    def _search(self, chunk: Chunk) -> LineSearch:
        return LineSearch(() if self._scrubber is None else chunk.lines, chunk.parts)

    # With transforms.

    def _transform(
        self,
        chunk: Chunk,
        entry: list[Step | None],
        outcome: Outcome,
        now_ns: int,
        sampler: DropSampler | None,
    ) -> None:
        walk = _Walk(self, outcome, chunk, now_ns, sampler)
        if chunk.resource:  # a verdict would say that nothing is to be attached
            whole, verdicts = _completed(chunk.lines, chunk)
        else:
            whole, verdicts = validated_together(chunk)
        for sequence, line, complete, known in zip(
            chunk.sequences, chunk.lines, whole, verdicts, strict=True
        ):
            try:
                verdict = known or check_line(complete)
                if isinstance(verdict, Rejected):
                    walk.refuse(Refused(sequence, _reason(verdict), line))
                    continue
                event = Event(chunk.source, sequence, from_json(complete))
            except Exception as error:  # noqa: BLE001 - the next record goes on
                walk.refuse(Refused(sequence, _failure(error, line), line))
                continue
            walk.begin(event, _Given(line, complete, verdict), entry)
        walk.finish()

    def describe(self, dropped: Sequence[_Dropped], max_text_bytes: int) -> list[Drop]:
        """Describe dropped records, redacted as `finish` would have done."""
        suspects: set[int] = set()
        if self._scrubber is not None and dropped:
            accepted = [one.given.accepted for one in dropped]
            search = LineSearch([one.given.line for one in dropped])
            changed = (place for place, one in enumerate(dropped) if one.event.history)
            suspects.update(self._scrubber.suspects(accepted, search), changed)
        described: list[Drop] = []
        for place, one in enumerate(dropped):
            describe = self._describe if place in suspects else drop_of
            fields = one.event.fields
            described.append(describe(one.kind, one.given.complete, fields, max_text_bytes))
        return described

    def _describe(self, kind: DropKind, line: bytes, fields: Fields, max_text_bytes: int) -> Drop:
        """Describe a dropped record; what the detectors find in it is not counted."""
        if (scrubber := self._scrubber) is not None:
            found, keyless = scrubber.found.copy(), scrubber.keyless.copy()
            try:
                fields = scrubber.scrub(fields)
            finally:
                scrubber.found, scrubber.keyless = found, keyless
        return drop_of(kind, line, fields, max_text_bytes)

    def finish(self, ends: Sequence[_Finished | Refused], outcome: Outcome, start: int) -> None:
        """Validate what the transforms made of records, and put them into their batches.

        Args:
            ends: The records, and others that are refused, in order.
            outcome: Takes them.
            start: Position of the chunk.
        """
        finished = [end for end in ends if isinstance(end, _Finished)]
        _validate_changed([end for end in finished if end.event.history])
        self._suspect([end for end in finished if end.accepted is not None])
        for end in ends:
            refused = end if isinstance(end, Refused) else self._put(end, outcome, start)
            if refused is not None:
                outcome.refused.append(refused)

    def _put(self, end: _Finished, outcome: Outcome, start: int) -> Refused | None:
        """Put a record into its batch, scrubbed; return its refusal where there is one."""
        accepted, event, given = end.accepted, end.event, end.given
        if accepted is None:
            reason = f"transform {_culprit(event, end.reason)}"
            return Refused(event.sequence, reason, given.line)
        fields, line = event.fields, end.line
        if end.is_suspect and self._scrubber is not None:
            fields = self._scrubber.scrub(fields)
            if fields is not event.fields:
                try:
                    line = encode_json(fields)
                except (TypeError, ValueError):
                    return Refused(event.sequence, _why_unwritable(fields), given.line)
                outcome.scrubbed += 1
        template = event.subject or self._template
        if template is None:
            subject = subject_of(accepted.kind, accepted.service, self._prefix)
        else:
            subject = template.subject(fields)
        key = (subject, given.subjects.count(subject))
        given.subjects.append(subject)
        batch = outcome.batches.get(key)
        if batch is None:
            batch = outcome.batches[key] = Batch(start)
        batch.sequences.append(event.sequence)
        batch.timestamps.append(accepted.time_unix_nano)
        batch.lines.append(line)
        batch.size += len(line)
        return None

    def _suspect(self, finished: Sequence[_Finished]) -> None:
        """Find the records that may hold something to scrub."""
        if self._scrubber is not None and finished:
            accepted = [end.accepted for end in finished if end.accepted is not None]
            search = LineSearch([end.searched for end in finished])
            for place in self._scrubber.suspects(accepted, search):
                finished[place].is_suspect = True

    # What transforms make themselves.

    def aggregators(self) -> list[str]:
        """Names of the transforms that make records; these come in as from a source so named."""
        return [*self._aggregators]

    def flush(
        self, now_ns: int, unix_ns: int, *, everything: bool = False
    ) -> dict[str, list[bytes]]:
        """Lines of the records that are due, by transform; all there are with `everything`."""
        found: dict[str, list[bytes]] = {}
        for name, transform in self._aggregators.items():
            since_ns = self._flushed_ns.setdefault(name, now_ns)
            is_due = transform.is_flush_due or now_ns - since_ns >= transform.interval_ns
            if everything or is_due:
                self._flushed_ns[name] = now_ns
                due = transform.flush(now_ns, unix_ns, everything=everything)
                lines = [encode_json(fields) for fields in due]
                if lines:
                    found[name] = lines
        return found

    @property
    def is_flush_due(self) -> bool:
        """True if a transform has so much to give out that it may not wait for its time."""
        return any(transform.is_flush_due for transform in self._aggregators.values())

    def held_since_ns(self) -> dict[str, int]:
        """When each transform that holds records took in the oldest of them."""
        times = ((name, one.held_since_ns) for name, one in self._aggregators.items())
        return {name: since_ns for name, since_ns in times if since_ns is not None}

    def drops(self, now_ns: int, sampler: DropSampler) -> list[Drop]:
        """Describe records that transforms held and have dropped since the last call.

        Args:
            now_ns: Monotonic time.
            sampler: Chooses the drops that are described.
        """
        return [
            self._describe(kind, encode_json(fields), fields, sampler.max_text_bytes)
            for name, step in self.steps.items()
            if step.deferred is not None
            for source, fields in step.deferred.dropped()
            if sampler.chooses(kind := DropKind(source, name, DropReason.SAMPLED.value), now_ns)
        ]

    def counts(self) -> dict[str, dict[str, int]]:
        """Per transform, records received, sent and ended, and what it did not understand of them.

        All are since the graph was built.
        """
        return {
            name: {
                "received": step.received,
                "sent": step.sent,
                **step.ended,
                **step.transform.notes,
            }
            for name, step in self.steps.items()
        }


class _Walk:
    """The ways of a chunk's records through the graph, one after the other."""

    def __init__(
        self,
        graph: Graph,
        outcome: Outcome,
        chunk: Chunk,
        now_ns: int,
        sampler: DropSampler | None,
    ) -> None:
        self._graph = graph
        self._outcome = outcome
        self._chunk = chunk
        self._now_ns = now_ns
        self._sampler = sampler
        self._given: _Given
        self._ends: list[_Finished | Refused] = []
        self._dropped: list[_Dropped] = []
        self._size = 0

    def begin(self, event: Event, given: _Given, entry: list[Step | None]) -> None:
        """Send a record on its way."""
        self._given = given
        self.send(event, entry)

    def refuse(self, refused: Refused) -> None:
        """Refuse a record; its refusal comes behind those of the records before it."""
        self._ends.append(refused)

    def finish(self) -> None:
        """Hand over the records that have passed the transforms, and the refused ones."""
        self._graph.finish(self._ends, self._outcome, self._chunk.start)
        self._ends.clear()
        self._size = 0
        if self._sampler is not None:
            limit = self._sampler.max_text_bytes
            self._outcome.drops += self._graph.describe(self._dropped, limit)
            self._dropped.clear()

    def _end_of(self, event: Event) -> None:
        given = self._given
        self._ends.append(_Finished(event, given, given.complete, given.line, given.accepted))
        self._size += len(given.complete)
        if len(self._ends) >= _FINISHED_MAX or self._size >= _FINISHED_BYTES_MAX:
            self.finish()

    def send(self, event: Event, targets: list[Step | None]) -> None:
        """Send a record to every target; each but the last gets a copy."""
        for step in targets[:-1]:
            self._outcome.copies += 1
            self._follow(event.copy(), step)
        self._follow(event, targets[-1])

    def _follow(self, event: Event, step: Step | None) -> None:
        while step is not None:
            verdict = self._apply(event, step)
            self._outcome.pause_ns = max(self._outcome.pause_ns, event.pause_ns)
            if verdict.__class__ is not str:
                if isinstance(verdict, Split):
                    self._split(event, step, verdict.parts)
                else:
                    self._end(event, step, verdict)
                return
            step.sent += 1
            targets = step.targets[verdict]
            if len(targets) > 1:
                self.send(event, targets)
                return
            step = targets[0]
        self._end_of(event)

    def _split(self, event: Event, step: Step, parts: Sequence[Fields]) -> None:
        """Send each part on as a copy of the record, in order."""
        self._outcome.copies += len(parts) - 1
        step.sent += len(parts)
        for fields in parts:
            part = event.copy()
            part.fields = fields
            part.history.append((step.name, fields))
            self.send(part, step.targets[PASS])

    def _apply(self, event: Event, step: Step) -> Any:
        step.received += 1
        before = event.fields
        try:
            if self._chunk.met and self._is_met(event, step):
                return DropReason.REPEATED
            verdict = step.transform.apply(event, self._now_ns)
        except Exception as error:  # noqa: BLE001 - one record must not stop those behind it
            event.fields = before
            if isinstance(error, TypeError) and _has_large_integer(before):
                return Refusal(_TOO_LARGE)  # it cannot be measured, for it cannot be written
            package = type(step.transform).__module__.partition(".")[0]
            whose = "Penstock" if package == "penstock" else f"the package {package}"
            return Refusal(f"failed with {type(error).__name__}; this is a bug in {whose}")
        if event.fields is not before:
            event.history.append((step.name, event.fields))
        return verdict

    def _is_met(self, event: Event, step: Step) -> bool:
        """Return whether a transform took a record before a kill, and needs it no more."""
        met = self._chunk.met
        upto = met.get(step.name, met.get("", 0))
        return event.sequence <= upto and step.transform.takes(event)

    def _end(self, event: Event, step: Step, verdict: DropReason | Refusal) -> None:
        if isinstance(verdict, Refusal):
            reason = f"transform {step.name}: {verdict.reason}"
            self.refuse(Refused(event.sequence, reason, self._given.line))
            step.ended["quarantined"] += 1
        else:
            self._outcome.ended[verdict] += 1
            if verdict is DropReason.AGGREGATED:
                self._outcome.held.add(step.name)
            step.ended[verdict.value] += 1
            if (sampler := self._sampler) is not None and step.drops(verdict):
                kind = DropKind(event.source, step.name, verdict.value)
                if sampler.chooses(kind, self._now_ns):
                    self._dropped.append(_Dropped(kind, event, self._given))


_TOO_LARGE: Final = "integer_too_large"
"""Reason of a record with an integer beyond 64 bits in a field that its spec does not have.

It goes on as the bytes that it came in, and cannot be written again: changed, redacted or held.
"""


def _failure(error: Exception, line: bytes) -> str:
    """Why a record is refused that cannot be written again, or for something unforeseen."""
    if isinstance(error, TypeError) and _has_large_integer(from_json(line)):
        return _TOO_LARGE
    return f"check_failed: {type(error).__name__}: {error}"[:REASON_MAX]


def _why_unwritable(fields: Fields) -> str:
    return _TOO_LARGE if _has_large_integer(fields) else "not_json"


def _has_large_integer(value: Any) -> bool:
    """Return whether there is an integer that JSON writers do not take: beyond 64 bits."""
    match value:
        case int():
            return not INT64_MIN <= value <= _UINT64_MAX
        case dict():
            return any(map(_has_large_integer, value.values()))
        case list():
            return any(map(_has_large_integer, value))
        case _:
            return False


def _reason(verdict: Rejected) -> str:
    return f"{verdict.reason}: {verdict.detail}" if verdict.detail else verdict.reason


def _written(fields: Fields) -> bytes | str:
    """The record's line; text is why it cannot be written."""
    try:
        return encode_json(fields)
    except (TypeError, ValueError):
        return _why_unwritable(fields)
    except RecursionError:
        return "not_json"


def _validate_changed(finished: Sequence[_Finished]) -> None:
    """Write records that transforms changed, and validate them again."""
    written: list[_Finished] = []
    for end in finished:
        found = _written(end.event.fields)
        if isinstance(found, str):
            end.accepted, end.reason = None, found
        else:
            end.line = end.searched = found
            written.append(end)
    try:
        together = check_together([end.line for end in written])
    except Exception:  # noqa: BLE001 - validated one by one, each has its verdict
        together = None
    if together is not None:
        for end, accepted in zip(written, together, strict=True):
            end.accepted = accepted
        return
    for end in written:
        verdict = check_line(end.line)
        if isinstance(verdict, Rejected):
            end.accepted, end.reason = None, _reason(verdict)
        else:
            end.accepted = verdict


def _culprit(event: Event, reason: str) -> str:
    """The first transform after which the record broke its spec, and how."""
    for name, fields in event.history:
        line = _written(fields)
        if isinstance(line, str):
            return f"{name}: {line}"
        if isinstance(verdict := check_line(line), Rejected):
            return f"{name}: {_reason(verdict)}"
    return f"{event.history[-1][0]}: {reason}"
