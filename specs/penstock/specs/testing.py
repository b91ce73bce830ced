"""Helpers for applications' tests: the records they emit, without a collector.

With pytest nothing needs to be imported: the fixture `specs_capture` comes with the package.

    def test_an_order_is_announced(specs_capture):
        place_order("o-1")
        specs_capture.assert_emitted(OrderPlaced, order_id="o-1")

Records go the whole way, through their own emitter into a pipeline within the process that
validates each line as the collector would. What it would refuse, and fields that the record's spec
does not declare, fail the test at its end.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from pydantic import ValidationError
from typing_extensions import override

from penstock.specs.emit.delivery.config import EmitterLimits
from penstock.specs.emit.delivery.core import Acked, Batch
from penstock.specs.emit.delivery.queue import line_of
from penstock.specs.emit.delivery.transport import Link, Report
from penstock.specs.emit.emitter import Emitter
from penstock.specs.emit.process_emitter import use_emitter
from penstock.specs.errors import SpecError
from penstock.specs.models.codec import decode, explain, lift
from penstock.specs.models.envelope import Record, resolve
from penstock.specs.redact.scrubber import Scrubber
from penstock.specs.validate.validator import attach, check_line
from penstock.specs.validate.verdict import Rejected

R = TypeVar("R", bound=Record)

_FLUSH_S: Final = 10.0
_SHOWN_MAX: Final = 20
_LIMITS: Final = EmitterLimits(
    max_queue_records=100_000, max_queue_bytes=1 << 28, max_batch_age_ms=1, max_repeats=0
)


class StubLink(Link):
    """The pipeline's entrance: takes every batch at once, and keeps its lines."""

    def __init__(self, resource_json: bytes, lines: list[bytes]) -> None:
        self._resource_json = resource_json
        self._lines = lines

    @override
    def send(self, batch: Batch, report: Report) -> list[Any]:
        self._lines += [attach(line_of(record), self._resource_json) for record in batch.records]
        return [Acked(batch.sequence)]


class Capture:
    """The records that were emitted since it was made, or cleared.

    Attributes:
        emitter: Brings it here; the process's emitter while the capture lasts.
    """

    def __init__(self, service: str = "test") -> None:
        self._lines: list[bytes] = []
        self.emitter: Final = Emitter(
            {"service.name": service},
            link=lambda _, resource_json: StubLink(resource_json, self._lines),
            limits=_LIMITS,
            scrubber=Scrubber(keyless="keep", values=False),
        )

    @property
    def records(self) -> list[dict[str, Any]]:
        """The JSON objects of all lines, in order."""
        found: list[dict[str, Any]] = [json.loads(line) for line in self.lines()]
        return found

    def lines(self) -> list[bytes]:
        """All lines, each with its resource."""
        assert self.emitter.flush(_FLUSH_S), "the emitter did not hand over its records"
        return list(self._lines)

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The records of one kind: ``log``, ``span``, ``metric``, ``event``, ``audit``."""
        return [record for record in self.records if record["kind"] == kind]

    def clear(self) -> None:
        """Forget what was emitted so far."""
        self.lines()
        self._lines.clear()

    def assert_emitted(self, spec: type[R], /, **fields: Any) -> R:
        """Fail unless a record of this spec, with these fields, was emitted; returns the last one.

        Fields are named as on the class; what is sensitive is compared as it left the process.
        """
        _refuse_unknown(spec, fields)
        found = self._of_spec(spec)
        fitting = [record for record in found if _differences(record, fields) == {}]
        if fitting:
            return fitting[-1]
        raise AssertionError(self._explain(spec, fields, found))

    def assert_not_emitted(self, spec: type[Record], /, **fields: Any) -> None:
        """Fail if a record of this spec, with these fields, was emitted."""
        _refuse_unknown(spec, fields)
        for record in self._of_spec(spec):
            assert _differences(record, fields), f"{spec.spec} was emitted: {record!r}"

    def assert_logged(self, body: str, **attributes: Any) -> dict[str, Any]:
        """Fail unless a log record with this message and these attributes was emitted."""
        logs = self.of("log")
        fitting = [
            record
            for record in logs
            if record["body"] == body and record.get("attributes", {}).items() >= attributes.items()
        ]
        if fitting:
            return fitting[-1]
        said = "\n".join(f"  {r['body']!r} {r.get('attributes', {})}" for r in logs[-_SHOWN_MAX:])
        raise AssertionError(f"no log record {body!r} with {attributes}; there were:\n{said}")

    def assert_well_formed(self) -> None:
        """Fail if the collector would refuse a record, or one has fields that nobody declared."""
        complaints = [text for line in self.lines() if (text := _complaint(line)) is not None]
        lost = {
            kind: {reason: count for reason, count in reasons.items() if reason in _BROKEN}
            for kind, reasons in self.emitter.counters().dropped.items()
        }
        complaints += [f"{kind}: {reasons}" for kind, reasons in lost.items() if reasons]
        assert not complaints, "records that break their spec:\n" + "\n".join(complaints)

    def _of_spec(self, spec: type[R]) -> list[R]:
        lines = [line for line, record in zip(self._lines, self.records, strict=False)
                 if record["schema"] == spec.spec]  # fmt: skip
        found = []
        for line in lines:
            try:
                record = decode(line)
            except SpecError as error:
                raise AssertionError(f"{spec.spec}: {error}") from None
            assert isinstance(record, spec)
            found.append(record)
        return found

    def _explain(self, spec: type[Record], fields: Mapping[str, Any], found: list[Any]) -> str:
        if not found:
            seen = sorted({str(record["schema"]) for record in self.records})
            return f"no {spec.spec} was emitted; there were: {', '.join(seen) or 'no records'}"
        nearest = min(found, key=lambda record: len(_differences(record, fields)))
        lines = [f"no {spec.spec} with these fields among {len(found)}; the nearest differs in:"]
        lines += [
            f"  {name}: {actual!r}, not {fields[name]!r}"
            for name, actual in _differences(nearest, fields).items()
        ]
        return "\n".join(lines)


@contextmanager
def capturing(service: str = "test") -> Iterator[Capture]:
    """Capture what the process emits within the block; what loggers say, if they are set up."""
    capture = Capture(service)
    before = use_emitter(capture.emitter)
    try:
        yield capture
    finally:
        use_emitter(before)
        capture.emitter.close()


@contextmanager
def configured() -> Iterator[None]:
    """Structlog and the standard library's logging emit, within the block, what is severe or not.

    An application that calls `specs.setup` in its tests has done that already.
    """
    import structlog

    from penstock.specs.emit.handler import SpecHandler
    from penstock.specs.emit.structlog_processor import SpecProcessor, configure_structlog

    before = structlog.get_config() if structlog.is_configured() else None
    if before is None or not isinstance(before["processors"][-1], SpecProcessor):
        configure_structlog(level=logging.NOTSET)
    root, level = logging.getLogger(), logging.getLogger().level
    ours = [] if any(isinstance(h, SpecHandler) for h in root.handlers) else [SpecHandler()]
    for handler in ours:
        root.addHandler(handler)
        root.setLevel(min(level, logging.DEBUG))
    try:
        yield
    finally:
        for handler in ours:
            root.removeHandler(handler)
            root.setLevel(level)
        if before is None:
            structlog.reset_defaults()
        else:
            structlog.configure(**before)


_BROKEN: Final = frozenset({"not_encodable", "too_large", "bad_kind"})


def _complaint(line: bytes) -> str | None:
    verdict = check_line(line)
    if isinstance(verdict, Rejected):
        return f"  refused, {verdict.reason} {verdict.detail}: {_shortened(line)}"
    if verdict.unknown_fields:
        count = verdict.unknown_fields
        return f"  {count} fields that {verdict.schema} does not declare: {_shortened(line)}"
    if not verdict.exact:
        return f"  {verdict.schema} is not known here: {_shortened(line)}"
    return _undeclared(line)


def _undeclared(line: bytes) -> str | None:
    """Return fields that the validator tolerates as a newer version's; here they are errors."""
    fields = json.loads(line)
    model = resolve(fields["schema"], fields["kind"]).model
    assert model is not None, "the validator validated it by a model"
    try:
        model.model_validate(lift(model, fields))
    except ValidationError as error:
        return f"  {fields['schema']}: {explain(error)}: {_shortened(line)}"
    return None


def _shortened(line: bytes) -> str:
    return line[:500].decode("utf-8", "replace")


def _differences(record: Record, fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: actual for name, value in fields.items() if (actual := getattr(record, name)) != value
    }


def _refuse_unknown(spec: type[Record], fields: Mapping[str, Any]) -> None:
    unknown = sorted(fields.keys() - spec.model_fields.keys())
    assert not unknown, f"{spec.spec} declares no {', '.join(unknown)}"
