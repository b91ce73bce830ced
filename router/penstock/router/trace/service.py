"""Questions about single records, answered at the admin endpoint of a running job.

    POST /trace     for everybody who may see `/status`
    {"do": "explain", "records": [["logs", 0, 4711, "9f0c…"], …]}
    {"do": "filter", "where": "service = 'checkout' and body like '%declined%'"}
    {"do": "match", "where": …, "records": [["logs", 0, 4711, "9f0c…"], …]}

A record is named by stream, partition, offset and the digest of its value (`value_digest`). The job
reads it with its own credentials. Only a client that sends the right digest, and so has read the
record itself, sees values of its columns or whether a condition holds for it; null instead of a
digest asks without.

`explain` answers with what became of each record at each sink (`Verdict`). `filter` makes of a
condition, in the language of routes, a filter that a client evaluates itself while it scans the
log (`penstock.router.columns.filters`): it lets through at least the records for which the
condition holds; null lets through every record. `match` says for which records the condition holds.
"""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.base.clock import BlockingClock
from penstock.logd.client import LogClient
from penstock.logd.errors import LogdError
from penstock.router.columns.filters import filter_to_json
from penstock.router.columns.schema import view
from penstock.router.job.config import JobConfig
from penstock.router.job.permissions import Answer
from penstock.router.job.routes import check_condition
from penstock.router.read.offsets import StreamPartition
from penstock.router.spark.readers import need
from penstock.router.trace.conditions import matching
from penstock.router.trace.explain import Explainer
from penstock.router.trace.records import read_records, value_digest
from penstock.router.trace.verdict import Wanted
from penstock.service import Requester, ServiceError

TRACE_PATH: Final = "/trace"

RECORDS_MAX: Final = 1000
"""Records of one question; where their names do not fit into the body of a request, a client asks
for fewer."""

WHERE_CHARACTERS_MAX: Final = 4000


class BadQuestionError(ValueError):
    """A question is not of the form of the module's docstring."""


class TraceService:
    """Answers questions about records, one at a time. Any thread.

    Args:
        spark: Gives the session; None: it has not started yet.
    """

    def __init__(
        self, config: JobConfig, spark: Callable[[], SparkSession | None], clock: BlockingClock
    ) -> None:
        self._config = config
        self._session = spark
        self._log = LogClient(
            config.logd, timeout_s=config.connect_timeout_s, access=config.source.access()
        )
        self._explainer = Explainer(config, self._spark, self._log, clock)
        self._lock = threading.Lock()

    def answer(self, _requester: Requester, body: bytes) -> Answer:
        if self._session() is None:
            return "503 Service Unavailable", {"error": "the job starts; ask again"}
        try:
            asked = json.loads(body)
            with self._lock:
                return "200 OK", self.ask(asked if isinstance(asked, dict) else {})
        except (BadQuestionError, json.JSONDecodeError, RecursionError) as error:
            return "400 Bad Request", {"error": str(error)}
        except ServiceError as error:
            return "409 Conflict", {"error": str(error)}
        except (LogdError, PySparkException, Py4JError, OSError) as error:
            return "503 Service Unavailable", {"error": f"{type(error).__name__}: {error}"}

    def ask(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a question in its parsed form.

        Raises:
            BadQuestionError: It is none.
            ServiceError: A condition is not valid, or a file of the job cannot be read.
            LogdError: logd cannot be reached, or refuses the job.
        """
        wanted = asked.get("do")
        if wanted == "explain":
            return self._explain(_records(asked))
        if wanted == "filter":
            return {"filter": self._filter(_where(asked))}
        if wanted == "match":
            return {"records": self._match(_where(asked), _records(asked))}
        raise BadQuestionError("do: explain, filter or match")

    def close(self) -> None:
        self._log.close()

    def _spark(self) -> SparkSession:
        session = self._session()
        assert session is not None, "asked before"
        return session

    def _explain(self, records: Sequence[Wanted]) -> dict[str, Any]:
        return {
            "job": self._config.job,
            "records": [
                {
                    "stream": wanted.at.stream,
                    "partition": wanted.at.partition,
                    "offset": wanted.offset,
                    "sinks": [verdict.as_json() for verdict in verdicts],
                }
                for wanted, verdicts in self._explainer.explain(records).items()
            ],
        }

    def _filter(self, where: str) -> list[Any] | None:
        spark = self._spark()
        rows = spark.createDataFrame([], view("records").struct())
        check_condition(where, rows, "where")
        only = need(spark, lambda frame: frame.where(where), "records").only
        return None if only is None else filter_to_json(only)

    def _match(self, where: str, records: Sequence[Wanted]) -> list[list[Any]]:
        read = read_records(self._log, records).rows
        digests = {(it.at, it.offset): it.digest for it in records}
        known = [
            digests[StreamPartition(row["stream"], row["partition"]), row["offset"]]
            == value_digest(row["value"])
            for row in read.select(["stream", "partition", "offset", "value"]).to_pylist()
        ]
        found = matching(self._spark(), where, read.filter(known))
        return [[*at, offset] for at, offset in sorted(found)]


def _where(asked: Mapping[str, Any]) -> str:
    where = asked.get("where")
    if not isinstance(where, str) or not 0 < len(where) <= WHERE_CHARACTERS_MAX:
        raise BadQuestionError(f"where: a condition of at most {WHERE_CHARACTERS_MAX} characters")
    return where


def _records(asked: Mapping[str, Any]) -> list[Wanted]:
    named = asked.get("records")
    if not isinstance(named, list) or not 0 < len(named) <= RECORDS_MAX:
        raise BadQuestionError(f"records: a list of at most {RECORDS_MAX}")
    return [_record(it) for it in named]


def _record(named: Any) -> Wanted:
    match named:
        case [str(stream), int(partition), int(offset), str() | None as digest] if (
            partition >= 0 and offset >= 0
        ):
            return Wanted(StreamPartition(stream, partition), offset, digest)
    raise BadQuestionError("records: each is [stream, partition, offset, digest or null]")
