"""What 0.1.0 wrote names options of a stream otherwise; it is read all the same."""

from pathlib import Path

from penstock.logd.metadata.codec import read_as
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.offline.backup import Manifest


def test_a_stream_in_the_metadata_of_0_1_0_has_its_options() -> None:
    written = {"name": "logs", "subject": "logs.>", "segment_bytes_max": 65536, "producers_max": 7}
    config = read_as(StreamConfig, written, where="metadata")
    assert (config.max_segment_bytes, config.max_producers) == (65536, 7)


def test_a_backup_that_0_1_0_made_gives_the_options_by_their_names_of_today(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    manifest = Manifest(
        "0.1.0", "2026-11-26", "logs", "logs.>", "ab", {"message_bytes_max": 1024}, []
    )
    manifest.save(path)
    found = Manifest.load(path)
    assert found is not None
    assert found.options == {"max_message_bytes": 1024}
