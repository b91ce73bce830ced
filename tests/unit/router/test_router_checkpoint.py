"""What a killed driver leaves in Spark's checkpoint, and what of it goes before the next start."""

from pathlib import Path

from penstock.router.checkpoint import clear_unfinished

LEFT = "73450e9c-bee1-4542-8b77-90af5fabf397"


def test_files_that_spark_had_not_finished_go_and_no_others(tmp_path: Path) -> None:
    for directory in ("offsets", "commits"):
        (tmp_path / directory).mkdir()
        for name in ("0", ".0.crc", "12", f".1.{LEFT}.tmp", f"..1.{LEFT}.tmp.crc"):
            (tmp_path / directory / name).touch()
    (tmp_path / "metadata").touch()
    clear_unfinished(tmp_path)
    clear_unfinished(tmp_path / "is-not-there")
    kept = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert kept == [
        "commits/.0.crc", "commits/0", "commits/12", "metadata",
        "offsets/.0.crc", "offsets/0", "offsets/12",
    ]  # fmt: skip
