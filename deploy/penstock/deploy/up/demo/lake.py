"""Counts of the Parquet files, read from the files themselves."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.deploy.up.demo.reconciliation import Landed

_UNWRITTEN = "_writing"
_NO_SERVICE = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, slots=True)
class LakeFile:
    """One file of the lake, what its path says; the service only where the lake is parted by it."""

    path: Path
    kind: str
    size_bytes: int
    service: str | None


@dataclass(frozen=True, slots=True)
class KindTotal:
    """All rows of one kind."""

    kind: str
    rows: int
    bytes: int
    files: int


def lake_files(lake: Path) -> list[LakeFile]:
    """The finished files, in path order."""
    return list(_files(lake))


def _files(lake: Path) -> Iterator[LakeFile]:
    for path in sorted(lake.rglob("*.parquet")):
        places = path.relative_to(lake).parts
        if _UNWRITTEN in places:
            continue
        keys = dict(place.split("=", 1) for place in places[:-1] if "=" in place)
        service = unquote(keys["service"]) if "service" in keys else None
        yield LakeFile(path, keys.get("kind", "(unknown)"), path.stat().st_size, service)


def landed_offsets(files: list[LakeFile]) -> dict[str, Landed]:
    """Rows and offsets by stream."""
    chunks: dict[str, list[pa.ChunkedArray]] = {}
    for file in files:
        rows = pq.ParquetFile(file.path).read(columns=["stream", "offset"])
        stream = rows.column("stream").cast(pa.string())
        for name in pc.unique(stream).to_pylist():
            chunks.setdefault(name, []).append(rows.column("offset").filter(pc.equal(stream, name)))
    return {name: _landed(parts) for name, parts in sorted(chunks.items())}


def _landed(parts: list[pa.ChunkedArray]) -> Landed:
    offsets = pa.chunked_array([chunk for part in parts for chunk in part.chunks])
    extremes = pc.min_max(offsets).as_py()
    distinct = pc.count_distinct(offsets).as_py()
    return Landed(len(offsets), distinct, extremes["min"], extremes["max"])


def rows_of_instance(files: list[LakeFile], instance: str) -> int:
    """Rows whose resource names this `service.instance.id`."""
    count = 0
    for file in files:
        rows = pq.ParquetFile(file.path).read(columns=["service_instance_id"])
        ids = rows.column("service_instance_id").cast(pa.string())
        count += pc.sum(pc.equal(ids, instance)).as_py() or 0
    return count


def problem_rows(files: list[LakeFile]) -> int:
    """Rows for which `penstock.deploy.up.topology.PROBLEMS` holds."""
    count = 0
    for file in files:
        rows = pq.ParquetFile(file.path).read(columns=["severity_number", "status_code"])
        is_error = pc.greater_equal(rows.column("severity_number"), 17)
        has_failed = pc.equal(rows.column("status_code").cast(pa.string()), "ERROR")
        problems = pc.or_(pc.fill_null(is_error, False), pc.fill_null(has_failed, False))
        count += pc.sum(problems).as_py() or 0
    return count


def totals(files: list[LakeFile]) -> list[KindTotal]:
    """Rows, bytes and files by kind."""
    grouped: dict[str, list[LakeFile]] = {}
    for file in files:
        grouped.setdefault(file.kind, []).append(file)
    return [
        KindTotal(
            kind,
            sum(pq.ParquetFile(file.path).metadata.num_rows for file in group),
            sum(file.size_bytes for file in group),
            len(group),
        )
        for kind, group in sorted(grouped.items())
    ]


def severities(files: list[LakeFile]) -> dict[str, dict[str, int]]:
    """Log records by service and severity."""
    found: dict[str, dict[str, int]] = {}
    for file in files:
        if file.kind != "log":
            continue
        named = ["service", "severity_text"] if file.service is None else ["severity_text"]
        rows = pq.ParquetFile(file.path).read(columns=named).to_pydict()
        count = len(rows["severity_text"])
        services = rows.get("service", [file.service] * count)
        for service, text in zip(services, rows["severity_text"], strict=True):
            shown = "(unknown)" if service in (None, _NO_SERVICE) else service
            of_service = found.setdefault(shown, {})
            name = (text or "unset").lower()
            of_service[name] = of_service.get(name, 0) + 1
    return found
