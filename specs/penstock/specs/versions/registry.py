"""The published versions of specs, as files that are committed and never edited.

<directory>/<name>/1.0.json            canonical JSON Schema
<directory>/<name>/1.0.ndjson          golden records: lines that are read for ever
<directory>/<name>/1.0.upcast.ndjson   the same as the next major version
<directory>/contracts/<consumer>.json  what a consumer needs (`penstock.specs.versions.compat`)
"""

import json
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.base.files import atomic_write
from penstock.specs.errors import RefusedSpecError, SpecError
from penstock.specs.models.envelope import SchemaName

CONTRACTS: Final = "contracts"
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Published:
    """One published version.

    Attributes:
        golden: Its golden records.
        upcast: The record as the next major version; None when there was none yet.
    """

    name: SchemaName
    schema: Json
    golden: tuple[Json, ...]
    upcast: tuple[Json, ...] | None


def read(directory: Path) -> dict[str, Published]:
    """All published versions by schema id; none if the directory is not there.

    Raises:
        SpecError: A file is damaged or missing.
    """
    found: dict[str, Published] = {}
    for path in sorted(directory.glob("*/*.json")):
        if path.parent.name == CONTRACTS:
            continue
        try:
            name = SchemaName.parse(f"{path.parent.name}/{path.stem}")
            upcast = path.with_suffix(".upcast.ndjson")
            found[f"{path.parent.name}/{path.stem}"] = Published(
                name,
                json.loads(path.read_bytes()),
                _lines(path.with_suffix(".ndjson")),
                _lines(upcast) if upcast.exists() else None,
            )
        except (OSError, ValueError, RefusedSpecError) as error:
            raise SpecError(f"{path}: {error}; restore it from version control") from error
    return found


def contracts(directory: Path) -> list[Json]:
    """Return the schemas that consumers need.

    Raises:
        SpecError: A file is damaged.
    """
    found = []
    for path in sorted((directory / CONTRACTS).glob("*.json")):
        try:
            found.append({"consumer": path.stem, **json.loads(path.read_bytes())})
        except (OSError, ValueError, TypeError) as error:
            raise SpecError(f"{path}: {error}") from error
    return found


def write(
    directory: Path, schema_id: str, schema: Mapping[str, Any], golden: Iterable[Json]
) -> None:
    """Publish a version.

    Raises:
        FileExistsError: It is published already.
    """
    path = directory / f"{schema_id}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    _create(path.with_suffix(".ndjson"), "".join(f"{canonical(each)}\n" for each in golden))
    _create(path, json.dumps(schema, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


def write_upcast(directory: Path, schema_id: str, records: Iterable[Json]) -> None:
    """Add what a version's golden records are as the next major version.

    Raises:
        FileExistsError: That is there already.
    """
    path = (directory / f"{schema_id}.json").with_suffix(".upcast.ndjson")
    _create(path, "".join(f"{canonical(each)}\n" for each in records))


def changed_since(directory: Path, revision: str) -> list[str]:
    """Published files that are not what they were in a git revision.

    Raises:
        SpecError: git fails, as when there is no such revision.
    """
    command = [
        "git",
        "diff",
        "--name-only",
        "--no-renames",
        "--diff-filter=MDT",
        revision,
        "--",
        ".",
    ]
    done = subprocess.run(  # noqa: S603 - fixed words; the revision stands before `--`
        command, cwd=directory, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SpecError(f"git: {done.stderr.strip()}")
    return [name for name in done.stdout.splitlines() if f"/{CONTRACTS}/" not in name]


def canonical(record: Mapping[str, Any]) -> str:
    """A record as one line, its keys in their order."""
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False)


def _lines(path: Path) -> tuple[Json, ...]:
    return tuple(json.loads(line) for line in path.read_bytes().splitlines())


def _create(path: Path, text: str) -> None:
    atomic_write(path, text, exclusive=True, durable=False)
