"""The steps of a route, one after the other, on the rows that it takes of a batch."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from penstock.router.columns.json_objects import is_deep, read_object, write_json
from penstock.router.delivery.batch_names import RowPosition, positions_of
from penstock.router.job.config_errors import WrongKeyError
from penstock.router.transforms import content, sampling
from penstock.router.transforms.dedupe import COLUMNS as DEDUPE_COLUMNS
from penstock.router.transforms.dedupe import Again, Seen, StreamId, nameless
from penstock.router.transforms.fields import ENVELOPE, Field, parse_field
from penstock.router.transforms.mappings import PRESETS
from penstock.router.transforms.settings import Transform
from penstock.router.transforms.sql import SQL_COLUMN, with_fields

_ROW_ONLY: Final = frozenset({"sample", "dedupe"})
"""Steps that leave rows out; all others change what a record says."""

_SQL_COLUMNS: Final = frozenset(
    {"stream", "partition", "offset", "subject", "timestamp_ns", "value", SQL_COLUMN}
)


@dataclass(frozen=True, slots=True)
class Transformed:
    """The rows of a route after its transforms.

    Attributes:
        refused: Rows that a step could not process, unchanged.
        left_out: Number of rows that steps left out, by their verb.
    """

    rows: pa.Table
    refused: pa.Table
    left_out: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Followed:
    """What became of each row of a route that was delivered before, or will be.

    Attributes:
        positions: Position of each of them.
        refused: Rows that a step could not process.
        left_out: Number of the step that left a row out.
        undecided: Rows of which no decision of `dedupe` is noted.
    """

    rows: pa.Table
    positions: list[RowPosition]
    refused: set[RowPosition]
    left_out: dict[RowPosition, int]
    undecided: set[RowPosition]


class Chain:
    """A route's steps, ready to use.

    Args:
        state_dir: A directory of the route's and sink's own, for the state of steps.
        key_path: Key of the steps in the job file, for errors.
        stream_id: The same as `SinkContext.stream_id`.
        again: Rows were delivered before.

    Raises:
        ConfigError: A key file cannot be used.
    """

    def __init__(
        self,
        steps: list[Transform],
        state_dir: Path,
        *,
        key_path: str,
        stream_id: StreamId = nameless,
        again: Again | None = None,
    ) -> None:
        self._steps = steps
        self._keys: dict[int, bytes] = {}
        self._seen: Seen | None = None
        for index, step in enumerate(steps):
            if step.hash is not None:
                try:
                    self._keys[index] = step.hash.key()
                except ValueError as error:
                    raise WrongKeyError(
                        f"{key_path}.{index}.hash.key_file: {error}",
                        fix="write a random key there: openssl rand -hex 32",
                    ) from None
            if step.dedupe is not None:
                self._seen = Seen(step.dedupe, state_dir, stream_id, again)

    @property
    def keeps_state(self) -> bool:
        """True if a step depends on earlier batches."""
        return self._seen is not None

    @property
    def columns(self) -> set[str]:
        """The columns that the steps need beside the sink's own.

        The text in `value` is not among them but for `sql`, whose typed columns are made of it:
        where a sink does not want it, nothing is done to it.
        """
        needed: set[str] = set()
        for step in self._steps:
            if step.sample is not None:
                needed |= sampling.sample_columns(step.sample)
            elif step.dedupe is not None:
                needed |= DEDUPE_COLUMNS
            elif step.sql is not None:
                needed |= _SQL_COLUMNS
            else:
                needed |= {"stream", "partition", "offset", "subject"}
        return needed

    def apply(
        self, table: pa.Table, batch: int, changed: list[tuple[str, int]] | None = None
    ) -> Transformed:
        """Do the steps to rows that come in the log's order.

        `changed` gets each step's verb, and how many rows it changed or left out; that costs a look
        at each row.

        Raises:
            ConfigError: `dedupe` must know what became of rows that come again, and does not.
        """
        work = _Work(table, must_parse=any(step.verb not in _ROW_ONLY for step in self._steps))
        for index, step in enumerate(self._steps):
            before = None if changed is None else work.rows()
            self._step(work, index, step, batch)
            if changed is not None and before is not None:
                after = work.rows()
                is_fewer = len(after) < len(before)
                differ = sum(it != was for it, was in zip(after, before, strict=False))
                count = len(before) - len(after) if is_fewer else differ
                changed.append((step.verb, count))
        return work.result()

    def follow(self, table: pa.Table) -> Followed:
        """Do the steps to rows, in the log's order, and tell what became of each.

        Decisions of `dedupe` are looked up.
        """
        work = _Work(table, must_parse=any(step.verb not in _ROW_ONLY for step in self._steps))
        left_out = dict[RowPosition, int]()
        undecided = set[RowPosition]()
        for index, step in enumerate(self._steps):
            before = positions_of(work.table)
            if step.dedupe is not None:
                assert self._seen is not None
                decided = self._seen.decided(work.table)
                undecided |= {at for at, it in zip(before, decided, strict=True) if it is None}
                work.keep(pa.array([it is True for it in decided], pa.bool_()), "dedupe")
            else:
                self._step(work, index, step, batch=0)
            if step.verb in _ROW_ONLY:
                gone = set(before) - set(positions_of(work.table)) - undecided
                left_out |= dict.fromkeys(gone, index)
        done, kept = work.result(), positions_of(work.table)
        return Followed(done.rows, kept, set(positions_of(done.refused)), left_out, undecided)

    def _step(self, work: "_Work", index: int, step: Transform, batch: int) -> None:
        if step.sample is not None:
            nth = sum(it.sample is not None for it in self._steps[:index])
            work.keep(sampling.kept(work.table, step.sample, nth), "sample")
            work.table = sampling.weigh(work.table, work.records, step.sample.rate)
            work.changed = True
        elif step.dedupe is not None:
            assert self._seen is not None
            work.keep(self._seen.fresh(work.table, batch), "dedupe")
        elif step.map is not None:
            work.map(step.map)
        elif step.sql is not None:
            work.table = with_fields(work.table, work.records)
            work.changed = True
        else:
            work.table = self._changed(work, index, step)
            work.changed = True

    def _changed(self, work: "_Work", index: int, step: Transform) -> pa.Table:
        table, records = work.table, work.records
        if step.select is not None:
            return content.select(table, records, step.select)
        if step.drop is not None:
            return content.drop(table, records, step.drop)
        if step.rename is not None:
            return content.rename(table, records, step.rename)
        if step.mask is not None:
            return content.mask(table, records, step.mask)
        assert step.hash is not None
        return content.keyed_hash(table, records, step.hash, self._keys[index])


class _Work:
    """Rows with their records, which stay side by side."""

    def __init__(self, table: pa.Table, *, must_parse: bool) -> None:
        self.changed = False
        self._left_out: dict[str, int] = {}
        self._original = table
        self._parses = "value" in table.column_names
        self.records: content.Records = []
        self._is_record: list[bool] = []
        self.table = table
        self._refused = [table.slice(0, 0)]
        if self._parses:
            self._parse()
            if must_parse:
                self._refuse(self._is_record)

    def rows(self) -> list[Any]:
        """Each row as it is now."""
        columns = self.table.drop_columns(["value"]) if self._parses else self.table
        rows: list[Any] = columns.to_pylist()
        if not self._parses:
            return rows
        return [(row, write_json(it)) for row, it in zip(rows, self.records, strict=True)]

    def keep(self, mask: pa.Array, verb: str) -> None:
        """Leave rows out."""
        stays = mask.to_pylist()
        self._left_out[verb] = self._left_out.get(verb, 0) + stays.count(False)
        self._filter(stays)

    def map(self, preset: str) -> None:
        """Make documents of the records."""
        made: list[dict[str, Any] | None] = [_mapped(preset, record) for record in self.records]
        self._refuse([document is not None for document in made])
        self.records = [document for document in made if document is not None]
        self.changed = True

    def result(self) -> Transformed:
        """The rows as they are now."""
        table = self.table
        if self.changed and self._parses:
            at = table.schema.get_field_index("value")
            before = table.column(at).to_pylist()
            values = [
                write_json(record) if is_record else value
                for record, is_record, value in zip(
                    self.records, self._is_record, before, strict=True
                )
            ]
            kind = table.schema.field(at)
            table = table.set_column(at, kind, pa.array(values, kind.type))
        return Transformed(table, pa.concat_tables(self._refused), self._left_out)

    def _parse(self) -> None:
        for value in self.table.column("value").to_pylist():
            record = None if is_deep(value or b"") else read_object(value)
            self._is_record.append(record is not None)
            self.records.append({} if record is None else record)

    def _refuse(self, stays: list[bool]) -> None:
        """Take rows out, as they were before any step."""
        if not self._parses or all(stays):
            return
        out = pa.array([not it for it in stays], pa.bool_())
        self._refused.append(self._untouched(self.table.filter(out)))
        self._filter(stays)

    def _untouched(self, rows: pa.Table) -> pa.Table:
        """Return the original rows of the batch for these."""
        wanted = set(positions_of(rows))
        chosen = [position in wanted for position in positions_of(self._original)]
        return self._original.filter(pa.array(chosen, pa.bool_()))

    def _filter(self, stays: list[bool]) -> None:
        self.table = self.table.filter(pa.array(stays, pa.bool_()))
        if self._parses:
            self.records = [it for it, stay in zip(self.records, stays, strict=True) if stay]
            self._is_record = [it for it, stay in zip(self._is_record, stays, strict=True) if stay]


def _mapped(preset: str, record: dict[str, Any]) -> dict[str, Any] | None:
    """A record's document; None where it is not a record as the specs say."""
    try:
        return PRESETS[preset](record)
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError):
        return None


def without_match(steps: list[Transform], kinds: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Names in steps that no record of these kinds has there: each step's number, and why."""
    gone: dict[Field, int] = {}
    kept: list[Field] | None = None
    kept_by = 0
    for index, step in enumerate(steps):
        fields = _named(step)
        for field_ in fields:
            if not field_.kinds() & kinds:
                of = " and ".join(sorted(kinds))
                yield index, f"{step.verb}: records of kind {of} have no {field_.name}"
            elif (by := next((n for it, n in gone.items() if _covers(it, field_)), -1)) >= 0:
                yield index, f"{step.verb}: step {by} has taken {field_.name} away"
            elif kept is not None and not any(field_.may_meet(it) for it in kept):
                yield index, f"{step.verb}: step {kept_by} keeps no {field_.name}"
        if step.select is not None:
            always = [parse_field(name) for name in ENVELOPE]
            kept, kept_by = [*fields, *always], index
        elif step.drop is not None or step.rename is not None:
            gone |= dict.fromkeys(fields, index)
        if step.rename is not None:
            made = [parse_field(name) for name in step.rename.values()]
            gone = {it: by for it, by in gone.items() if not any(map(it.may_meet, made))}
            kept = None if kept is None else [*kept, *made]


def _named(step: Transform) -> list[Field]:
    names: Iterable[str] = step.select or step.drop or step.rename or ()
    if (masked := step.mask or step.hash) is not None:
        names = masked.fields
    return [parse_field(name) for name in names]


def _covers(gone: Field, wanted: Field) -> bool:
    """Return whether removing one field removes all of another."""
    if gone.path in (wanted.path, wanted.path[:1]):
        return True
    return len(wanted.path) == 2 and gone.path[0] == wanted.path[0] and gone.matches(wanted.path[1])
