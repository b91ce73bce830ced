"""What 0.1.0 wrote beside a job is read for ever, whatever the code calls it now."""

import shutil
from pathlib import Path

from penstock.router.deadletters.replayable import DeadLetterFile, FileBatch, as_rows

GOLDEN = Path("tests/golden/router")


def test_a_file_of_dead_letters_is_read() -> None:
    file = DeadLetterFile(GOLDEN / "dead_letters.ndjson", "search", "waiting")
    found = list(file.dead_letters())
    assert [(it["stream"], it["partition"], it["offset"]) for it in found] == [
        ("logs", 0, 120),
        ("logs", 0, 121),
    ]
    assert file.summary()["codes"] == {"http_400": 1, "malformed": 1}
    rows = as_rows(found).to_pylist()
    assert [row["value"] for row in rows] == [b'{"kind": "log"}', b"\xff?"]
    assert rows[0]["key"] == b"k1"


def test_a_batch_of_files_that_a_replay_had_in_work_is_found_again(tmp_path: Path) -> None:
    replaying = tmp_path / "search" / "replaying"
    replaying.mkdir(parents=True)
    for name in ("batch.json", "dead_letters.ndjson"):
        shutil.copy(GOLDEN / name, replaying)
    left = FileBatch.left_in(tmp_path / "search")
    assert left is not None
    assert (left.target, left.names, left.delivered) == ("lake", ("dead_letters",), False)
    assert [file.name for file in left.files()] == ["search/dead_letters"]
