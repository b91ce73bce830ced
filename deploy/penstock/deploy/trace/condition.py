"""A search by a condition in the language of routes.

A running job parses the condition, with the parser of its routes, and makes a filter of it. The
filter is evaluated here while the log is scanned, on the columns that the job's rows have. It may
let others through, so the job then says of each record that is left whether the condition holds.
"""

import asyncio
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from penstock.base.errors import UnavailableError
from penstock.deploy.trace.explain import named
from penstock.deploy.trace.find import FoundRecord, PartitionRange, Search
from penstock.deploy.trace.parts import JobUnavailableError, PartsClient
from penstock.logd.format.frame import FrameHeader
from penstock.router.columns.filters import filter_from_json
from penstock.router.columns.projection import Projection, Projector
from penstock.router.columns.schema import view
from penstock.router.columns.spec_versions import known_versions
from penstock.router.read.offsets import Span

if TYPE_CHECKING:
    from collections.abc import Sequence

_LOG_COLUMNS = ("timestamp", "subject", "key", "value")


def by_condition(where: str, client: PartsClient, job: str) -> Search:
    """A search for records for which a condition holds.

    Args:
        where: The condition.
        client: Asks the job.
        job: Name of the job's part.

    Its `check` raises `UnavailableError` when the job goes away.

    Raises:
        JobUnavailableError: The job does not answer, or the condition is not valid.
    """
    answer = asyncio.run(client.ask_job(job, {"do": "filter", "where": where}))
    only = None if answer["filter"] is None else filter_from_json(answer["filter"])
    records = view("records")
    offset = tuple(it for it in records.columns if it.name == "offset")
    projector = Projector(Projection(records, offset, only, known_versions()))

    def select(part: PartitionRange, header: FrameHeader, rows: pa.RecordBatch) -> pa.Array:
        offsets = pc.add(rows.column("offset_delta").cast(pa.int64()), header.base_offset)
        columns = [offsets, *(rows.column(name) for name in _LOG_COLUMNS)]
        log = pa.RecordBatch.from_arrays(columns, names=["offset", *_LOG_COLUMNS])
        span = Span(part.stream, part.partition, part.start, part.end)
        kept = projector.shape(span, log).column("offset")
        return pc.is_in(offsets, value_set=kept)

    def check(candidates: list[FoundRecord]) -> list[FoundRecord]:
        asked = [named(it) for it in candidates]
        question = {"do": "match", "where": where, "records": asked}
        try:
            answer = asyncio.run(client.ask_job(job, question))
        except JobUnavailableError as error:
            raise UnavailableError(
                f"{job}, which reads the condition, cannot be asked any more: {error}",
                fix="ask again",
            ) from None
        found: Sequence[Sequence[object]] = answer["records"]
        positions = {tuple(it) for it in found}
        return [it for it in candidates if (it.stream, it.partition, it.offset) in positions]

    return Search(select, check)
