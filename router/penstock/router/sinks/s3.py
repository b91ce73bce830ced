"""The S3 sink: hive-partitioned Parquet objects in S3, or what speaks its protocol.

    URL/kind=log/date=2026-11-21/hour=08/lake.cold.logs.5f2c19aa-0-FIRST-LAST.DIGEST.parquet

An object's key says which records it holds: job, sink, stream, first characters of the stream's
id, partition, first and last offset, and a digest of all its offsets. A batch that comes
again makes the same keys, and an object is only put where there is none (`If-None-Match: *`, which
S3, MinIO, R2 and GCS know): 412 says that it is there. So nothing is stored twice, no version is
made and no object of an archive class is charged for being deleted early. With `conditional: false`
it is put again, the same one.

Tasks of Spark put the objects of a batch that comes for the first time. As with the sink `parquet`,
a route's `where` may change between a crash and the next start, and objects that the batch does not
make any more are then deleted. So the sink notes in its state directory that a batch has begun, by
which rules, and once its tasks have ended, which objects it made; the driver puts a batch that
comes again. It asks the store which objects there are only where that attempt failed before its
tasks had ended, and the rules are other ones now or some of its records are lost:

    STATE_DIR/objects.json   {"keys": [...], "starts": {"logs.5f2c19aa-0": 1200},
                              "is_whole": true, "rules": "9d0c…", "by": ["kind", "date", "hour"]}

A list of keys alone is an earlier version's. One without `by` is of a lake that is partitioned by
kind, service and date, and stays so.

Requests are signed by `botocore` (Signature Version 4), with credentials of the job file or those
that AWS's tools find: environment, profile, web identity, the machine's or container's role.
No object is to blame for a refusal with 4xx but one that is too large: the rest waits.
"""

import html
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import quote, unquote, urlencode

import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from penstock.base.files import atomic_write
from penstock.router.delivery.batch_names import POSITION
from penstock.router.delivery.classify import HttpResponse
from penstock.router.delivery.result import (
    DeliveryResult,
    Failed,
    Paused,
    Rejected,
    Retryable,
    Success,
    TooLarge,
)
from penstock.router.errors import UnavailableError
from penstock.router.job.config_errors import needed
from penstock.router.job.settings import Seconds
from penstock.router.lake.compactor import maintain
from penstock.router.lake.layout import FORMER_PARTITIONED_BY, PartitionColumn
from penstock.router.lake.merged_rows import MergedRows
from penstock.router.lake.plan import is_expired
from penstock.router.lake.settings import LakeFileSettings
from penstock.router.lake.store import S3Lake
from penstock.router.read.offsets import digest_of
from penstock.router.sinks.http.client import Compression, HttpRequest
from penstock.router.sinks.http.request_sink import Faulty, Item, Request, cut
from penstock.router.sinks.http.settings import HttpTaskSettings, RequestBatch
from penstock.router.sinks.http.task_sink import HttpTaskSink, WrittenRequests
from penstock.router.sinks.parquet.sink import (
    is_of_batch,
    located_in,
    position_tag_of,
    stale_of_batch,
    without_spans,
)
from penstock.router.sinks.parquet.writer import PATH_SAFE, split_by_partition, write_parquet
from penstock.router.sinks.sink import (
    Gone,
    Guarantee,
    Maintenance,
    Place,
    Preview,
    Replay,
    SinkContext,
    as_json_lines,
)
from penstock.router.storage.s3 import S3Keys, S3Location
from penstock.service.config_types import Form

_CODE: Final = re.compile(rb"<Code>(\w+)</Code>")
_POSITION: Final = "penstock_place"
"""The column that stores where a row stands in the batch."""

_DELETED: Final = (200, 204, 404)
_KEY: Final = re.compile(r"<Key>(.*?)</Key>", re.DOTALL)
_NEXT: Final = re.compile(r"<NextContinuationToken>(.*?)</NextContinuationToken>", re.DOTALL)
_BUCKET_IN_HOST: Final = re.compile(r".+\.s3[.-].*")


class S3Sink(LakeFileSettings, S3Keys, HttpTaskSettings):
    """Hive-partitioned Parquet objects in a bucket of S3 or a compatible store."""

    type: Literal["s3"]
    storage_class: Annotated[
        str, Form(r"^[A-Z][A-Z_]{2,40}$", "a storage class of S3, as in STANDARD_IA")
    ] = "STANDARD"
    conditional: bool = True
    compression: Compression = "zstd"
    timeout_s: Seconds = 60.0
    batch: RequestBatch = RequestBatch(max_records=100_000, max_bytes=64 * 1024 * 1024)

    def lake(self) -> S3Location:
        """Return the place of the objects, for compaction and retention."""
        host, path = str(self.url.host), unquote(self.url.path or "/").strip("/")
        given: dict[str, Any] = {"endpoint": f"{self.url.scheme}://{host}:{self.url.port}"}
        if _BUCKET_IN_HOST.fullmatch(host):
            bucket, _, rest = re.split(r"(\.s3[.-])", host, maxsplit=1)
            given["endpoint"] = f"{self.url.scheme}://s3.{rest}:{self.url.port}"
            path = f"{bucket}/{path}"
        keys = {"access_key_id", "secret_access_key", "session_token", "region"}
        given |= {name: getattr(self, name) for name in keys}
        ca_file = self.tls.ca_file
        return S3Location(url=f"s3://{path}", ca_file=ca_file, **given)

    @override
    def about(self) -> str:
        return (
            f"Parquet objects at {self.shown_url} ({self.storage_class}); each record exactly once"
        )


@dataclass(frozen=True, slots=True)
class Note:
    """The sink's note on its last batch.

    Attributes:
        keys: Keys of its objects.
        starts: First offsets, as `SinkContext.starts`; None: an earlier version's note.
        is_whole: Whether there are no other objects of it.
        rules: Digest of the rules that chose its rows, as `SinkContext.rules`.
        by: The columns by which the lake is partitioned.
    """

    keys: tuple[str, ...] = ()
    starts: Mapping[str, int] | None = None
    is_whole: bool = True
    rules: str = ""
    by: tuple[PartitionColumn, ...] = FORMER_PARTITIONED_BY

    @classmethod
    def from_json(cls, text: str) -> Self:
        found = json.loads(text)
        if isinstance(found, list):
            return cls(tuple(found))
        return cls(**found | {it: tuple(found[it]) for it in ("keys", "by") if it in found})


class S3(HttpTaskSink):
    """Puts an object for each directory and partition of the log that a task's rows are of."""

    config_class = S3Sink
    _config: S3Sink
    guarantee = Guarantee(
        Replay.EXACTLY_ONCE,
        "the same batch makes the same keys, and an object is put only where there is none",
    )
    columns = ("*",)
    knows_batches_only = True

    def __init__(self, config: S3Sink, context: SinkContext) -> None:
        super().__init__(config, context)
        self._auth = needed("botocore.auth", extra="s3")
        self._aws_request = needed("botocore.awsrequest", extra="s3").AWSRequest
        self._credentials = needed("botocore.credentials", extra="s3")
        self._errors = needed("botocore.exceptions", extra="s3")
        self._session: Any = None
        url = config.url
        usual = url.port == {"http": 80, "https": 443}[url.scheme]
        self._host = f"{url.host}" if usual else f"{url.host}:{url.port}"
        self._rows = pa.table({})
        self._noted: list[str] = []
        self._notes = True
        self._comes_again = False
        self._note = context.state_dir / "objects.json"
        self._tag = f"{context.job}.{context.sink}."
        found = self._read().by if self._note.exists() else None
        key = f"sinks.{context.sink}"
        self._partitioning = config.partitioning(found, key, config.shown_url)
        # Tasks have no note, and get it with the settings.
        self._task_settings = config.model_copy(update={"partition_by": self._partitioning.by})

    @override
    def begin(self) -> None:
        """Note that tasks may put objects of a batch, unless it comes again."""
        note, starts = self._read(), dict(self.context.starts)
        self._comes_again = note.starts == starts
        if note.starts is None:
            self._comes_again = any(is_of_batch(key, starts, self._tag) for key in note.keys)
        if not self._comes_again:
            rules, by = self.context.rules, self._partitioning.by
            self._write(Note((), starts, is_whole=False, rules=rules, by=by))

    @override
    def is_ready(self) -> bool:
        return not self._comes_again

    @override
    def maintenance(self) -> Maintenance | None:
        settings = self._config.compaction
        if not settings.enabled and self._config.retention is None:
            return None
        return Maintenance(settings.interval_s, self._maintain)

    def _maintain(self, is_stopping: Callable[[], bool]) -> None:
        policy = self._config.policy(merges=bool(self._config.compaction.enabled))
        context = self.context
        compression = self._config.compression
        maintain(self._lake(), policy, context.clock, compression, context.meter, is_stopping)

    def _lake(self) -> S3Lake:
        headers = {name: value.read() for name, value in self._config.headers.items()}
        return S3Lake(
            self._config.lake(),
            location=f"sinks.{self.context.sink}",
            storage_class=self._config.storage_class,
            headers=headers,
        )

    @override
    def locate(self, rows: pa.Table) -> Sequence[Place]:
        places = located_in(self._lake(), rows, self._partitioning, self.context, PATH_SAFE)
        if self._config.partition_by is None:  # an older lake may have other directories
            places = [None if isinstance(it, Gone) else it for it in places]
        return places

    @override
    def join_task(self, first: Self) -> None:
        self._notes = False
        if self is first and self._config.access_key_id is None:
            self._session = needed("botocore.session", extra="s3").get_session()
        self._session = first._session

    @override
    def hold(self, rows: pa.Table) -> None:
        self._rows = rows

    @override
    def name_of(self, request: Request) -> str:
        return self._key_of(request)

    @override
    def write(self, rows: pa.Table) -> None:
        self._comes_again = False  # what is lost of the batch is known before its objects are made
        super().write(rows)

    @override
    def commit(self, results: Sequence[WrittenRequests]) -> None:
        if self._comes_again:  # only now it is known what of it is lost
            results = [
                it if it.left is None else replace(self.encoded(it.left), counts=it.counts)
                for it in results
            ]
        super().commit(results)

    @override
    def start_over(self) -> None:
        """Nothing of what was put is to be deleted any more."""
        self._note.unlink(missing_ok=True)

    @override
    def prepare_to_settle(self, requests: Sequence[Request], taken: Sequence[str]) -> None:
        """Note the batch's objects, and delete those of an earlier attempt that are none of it.

        Raises:
            UnavailableError: One cannot be deleted now.
        """
        made = [*taken, *(self._key_of(request) for request in requests)]
        stale, kept = stale_of_batch(made, self._earlier(), self.context, self._tag)
        if not made and not stale:
            return
        self._noted = made + stale + kept
        self._persist_keys()
        for key in stale:
            self._delete(key)

    @override
    def to_requests(self, rows: pa.Table) -> tuple[list[Request], list[Faulty]]:
        """One request for each place; `batch` cuts those of more records or bytes of values."""
        self._rows = rows
        whole = rows.select(POSITION).to_pylist()
        positions = pa.array(range(rows.num_rows), pa.int64())
        requests = []
        earlier = self._earlier()
        merged = self._merged_rows(earlier)
        now_ns = self.context.clock.unix_ns()
        numbered = rows.append_column(_POSITION, positions)
        for directory, of_partition in split_by_partition(numbered, self._partitioning):
            if is_expired(directory, now_ns, self._config.max_age_s):
                self.context.meter.count("left_out_expired", of_partition.num_rows)
                continue
            for generation in self.context.by_generation(of_partition):
                part = self._not_there(directory, generation, earlier)
                if merged is not None:
                    part = self._not_merged(directory, part, merged)
                sizes = pc.fill_null(pc.binary_length(part.column("value")), 0).to_pylist()
                items = [Item(None, size) for size in sizes]
                places = [*zip(part.column(_POSITION).to_pylist(), items, strict=True)]
                chunks = cut(places, self._config.batch, self.empty_size)
                requests += [self._request(directory, chunk, whole) for chunk in chunks]
        return requests, []

    def _merged_rows(self, earlier: Sequence[str]) -> MergedRows | None:
        """Return the objects that compaction has merged; None: no row was delivered before.

        The driver puts repeated and replayed rows, so tasks have none of those.
        """
        if not self._notes or not self._config.compaction.enabled:
            return None
        merged = MergedRows(self._lake(), self.context.clock.unix_ns())
        merged.cancel_plans(earlier)
        return merged

    def _not_merged(self, directory: str, part: pa.Table, merged: MergedRows) -> pa.Table:
        """The rows without those that merged objects have."""
        if not part.num_rows:
            return part
        ends = [part.slice(at, 1) for at in (0, part.num_rows - 1)]
        first, last = (it.select(POSITION).to_pylist()[0] for it in ends)
        tag = self._tag + self.context.position_tag(**first)
        path = f"{directory}/{tag}-{first['offset']:020d}-{last['offset']:020d}.parquet"
        merged.cancel_plans([path])
        left = merged.without(path, part)
        self.context.meter.count("already_there", part.num_rows - left.num_rows)
        return left

    def _read(self) -> Note:
        return Note.from_json(self._note.read_text()) if self._note.exists() else Note()

    def _earlier(self) -> list[str]:
        """The objects of the last batch, or of an earlier attempt at this one.

        Raises:
            UnavailableError: The store does not say which there are.
        """
        note = self._read()
        may_differ = note.rules != self.context.rules or bool(self.context.shortened)
        if note.is_whole or note.starts != self.context.starts or not may_differ:
            return list(note.keys)
        found = self._listed()
        self._persist(replace(note, keys=tuple(found), is_whole=True))
        return found

    def _listed(self) -> list[str]:
        """The objects of the batch in work that are there, of all directories.

        Raises:
            UnavailableError: The store does not say so now.
        """
        path, prefix = "/", unquote(self.path("/").partition("?")[0]).lstrip("/")
        if not _BUCKET_IN_HOST.fullmatch(str(self._config.url.host)):
            bucket, _, prefix = prefix.partition("/")
            path = quote(f"/{bucket}", safe="/-_.~")
        asked = {"encoding-type": "url", "list-type": "2", "prefix": prefix}
        found: list[str] = []
        while True:
            answer = self.fetch(self._signed_at("GET", f"{path}?{urlencode(asked)}", {}, b""))
            if answer is None or answer.status != 200:
                said = "no answer" if answer is None else answer.fault.reason
                raise UnavailableError(
                    "objects of an earlier attempt at this batch have to be listed, for the job was"
                    f" changed or records lost since: {said}; the sink needs s3:ListBucket for that"
                )
            body = answer.body.decode()
            keys = (unquote(html.unescape(it)).removeprefix(prefix) for it in _KEY.findall(body))
            found += [it for it in keys if is_of_batch(it, self.context.starts, self._tag)]
            more = _NEXT.search(body)
            if more is None:
                return found
            asked["continuation-token"] = html.unescape(more[1])

    def _not_there(self, directory: str, part: pa.Table, earlier: Sequence[str]) -> pa.Table:
        """The rows without those that an earlier attempt put, where its objects stay."""
        if not self.context.shortened:
            return part
        first = part.select(POSITION).slice(0, 1).to_pylist()[0]
        place = self.context.position_tag(**first)
        if place not in self.context.shortened:
            return part
        keys = (key for key in earlier if key.rpartition("/")[0] == directory)
        mine = (key for key in keys if position_tag_of(key, self._tag) == place)
        return without_spans(part, mine, self._is_there)

    def _is_there(self, key: str) -> bool:
        """Return whether an object exists.

        Raises:
            UnavailableError: The store does not answer.
        """
        answer = self.fetch(self._signed("HEAD", key, {}, b""))
        if answer is None or answer.status not in (200, 404):
            said = "no answer" if answer is None else answer.fault.reason
            raise UnavailableError(f"whether {key} is there cannot be told: {said}")
        return answer.status == 200

    @override
    def request_of(self, request: Request, attempt: int) -> HttpRequest:
        key = self._key_of(request)
        if self._notes and key not in self._noted:  # a piece of an object that was too large
            self._noted.append(key)
            self._persist_keys()
        file = io.BytesIO()
        write_parquet(self._part_of(request), file, self._config.compression)
        self.context.meter.count("bytes", file.tell())
        return self._signed("PUT", key, self._headers(), file.getvalue())

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/vnd.apache.parquet"}
        if self._config.storage_class != "STANDARD":  # not every compatible store knows the header
            headers["x-amz-storage-class"] = self._config.storage_class
        return headers | ({"If-None-Match": "*"} if self._config.conditional else {})

    def _signed(
        self, method: str, key: str, headers: Mapping[str, str], body: bytes
    ) -> HttpRequest:
        """A request with its signature.

        Raises:
            OSError: There are no credentials now.
        """
        # Stores compare signatures of paths that are encoded so, `=` in the prefix included.
        prefix = unquote(self.path("/").partition("?")[0])
        return self._signed_at(method, quote(prefix + key, safe="/-_.~"), headers, body)

    def _signed_at(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> HttpRequest:
        """Sign a request for an encoded path, which may have a query."""
        url = f"{self._config.url.scheme}://{self._host}{path}"
        own = {**headers, **self.own_headers(), "Host": self._host}
        request = self._aws_request(method, url, headers=own, data=body)
        try:
            credentials = self._found_credentials()
            self._auth.S3SigV4Auth(credentials, "s3", self._config.region).add_auth(request)
        except (self._errors.BotoCoreError, self._errors.ClientError) as error:
            raise PermissionError(f"no credentials: {error}") from error
        shown = {name: value for name, value in headers.items() if name in request.headers}
        hidden = {name: value for name, value in request.headers.items() if name not in shown}
        return HttpRequest(path, shown, body, "none", method, hidden)

    def _found_credentials(self) -> Any:
        config = self._config
        if config.access_key_id is not None and config.secret_access_key is not None:
            token = config.session_token.read() if config.session_token else None
            keys = (config.access_key_id.read(), config.secret_access_key.read())
            return self._credentials.Credentials(*keys, token)
        if self._session is None:
            self._session = needed("botocore.session", extra="s3").get_session()
        found = self._session.get_credentials()
        if found is None:
            raise self._errors.NoCredentialsError
        return found.get_frozen_credentials()

    @override
    def exchange(self, request: Request, attempt: int) -> DeliveryResult:
        """Send an object; one that may exist already is never cut into other pieces."""
        verdict = super().exchange(request, attempt)
        if not isinstance(verdict, Failed):
            return verdict
        fix = "it is sent again whole: raise timeout_s where a link is too slow for it"
        return Retryable(f"{verdict.fault.reason}; {fix}")

    @override
    def classify_answer(self, answer: HttpResponse, request: Request) -> DeliveryResult:
        found = _CODE.search(answer.body)
        code = found[1].decode() if found else ""
        if answer.status == 412 and self._config.conditional:
            self.context.meter.count("already_there", len(request.items))
            return Success()
        if code == "EntityTooLarge":
            return TooLarge(answer.fault)
        if answer.status == 409 or code == "RequestTimeout":
            return Retryable(answer.fault.reason, answer.after_s)
        verdict = super().classify_answer(answer, request)
        damaged = code in ("BadDigest", "IncompleteBody", "XAmzContentSHA256Mismatch")
        if damaged or isinstance(
            verdict, Failed
        ):  # a store looks into no object: no record's fault
            return Retryable(answer.fault.reason, answer.after_s)
        if isinstance(verdict, Success):
            self.context.meter.count("files")
        return Paused(answer.fault.reason) if isinstance(verdict, Rejected) else verdict

    @override
    def show(self, request: Request) -> Preview:
        key = self._key_of(request)
        path = self.path("/" + quote(key, safe="/-_.~="))
        target = f"PUT {self.address}{self.shown_path(path)}"
        headers = tuple(sorted(self._headers().items()))
        return Preview(target, len(request.items), as_json_lines(self._part_of(request)), headers)

    def _part_of(self, request: Request) -> pa.Table:
        """The request's rows, without the columns that its place tells."""
        part = self._rows.take(list(request.rows))
        left_out = self._partitioning.left_out
        return part.drop_columns(left_out) if left_out else part

    def _key_of(self, request: Request) -> str:
        offsets = self._rows.column("offset").take(list(request.rows)).to_pylist()
        first = self._rows.slice(request.rows[0], 1).select(["stream", "partition"]).to_pylist()[0]
        context = self.context
        place = self._tag + context.position_tag(first["stream"], first["partition"], offsets[0])
        span = f"{offsets[0]:020d}-{offsets[-1]:020d}"
        return f"{request.group}/{place}-{span}.{digest_of(offsets)}.parquet"

    def _persist_keys(self) -> None:
        """Note all objects of the batch."""
        starts = dict(self.context.starts)
        by = self._partitioning.by
        self._persist(Note(tuple(self._noted), starts, rules=self.context.rules, by=by))

    def _persist(self, note: Note) -> None:
        self._write(note)
        self.context.persist()

    def _write(self, note: Note) -> None:
        atomic_write(self._note, json.dumps(asdict(note)).encode(), parents=True)

    def _delete(self, key: str) -> None:
        answer = self.fetch(self._signed("DELETE", key, {}, b""))
        if answer is None or answer.status not in _DELETED:
            said = "no answer" if answer is None else answer.fault.reason
            raise UnavailableError(
                f"{key} is of an earlier attempt at this batch and cannot be deleted: {said}"
            )
