import pytest

from penstock.logd.errors import CorruptError, RefusedError
from penstock.logd.metadata.streams import Metadata, StreamConfig

LOGS = StreamConfig(name="logs", subject="t.logs.>")


def names(metadata: Metadata) -> list[str]:
    return [stream.config.name for stream in metadata.streams()]


def test_creating_the_same_again_changes_nothing() -> None:
    metadata = Metadata()
    first, created = metadata.create(LOGS, "one")
    again, created_again = metadata.create(LOGS, "two")
    assert (created, created_again) == (True, False)
    assert again == first


def test_creating_another_of_the_name_is_refused_with_the_difference() -> None:
    metadata = Metadata()
    metadata.create(LOGS, "one")
    other = StreamConfig(name="logs", subject="t.logs.>", dedup_window_s=1)
    with pytest.raises(RefusedError, match="dedup_window_s 120, not 1") as raised:
        metadata.create(other, "two")
    assert raised.value.code == "STREAM_DIFFERS"


def test_a_deleted_stream_is_gone_at_once_and_forgotten_when_its_data_is() -> None:
    metadata = Metadata()
    metadata.create(LOGS, "one")
    metadata.mark_deleted("logs")
    assert (names(metadata), metadata.match("t.logs.a")) == ([], ())
    with pytest.raises(RefusedError, match="deletion not finished"):
        metadata.create(LOGS, "two")
    restored = Metadata.restore(metadata.snapshot())
    assert [stream.incarnation for stream in restored.deleting()] == ["one"]
    restored.forget("logs")
    assert restored.create(LOGS, "two")[1]


def test_options_follow_and_the_subject_does_not() -> None:
    metadata = Metadata()
    metadata.create(LOGS, "one")
    assert metadata.alter(StreamConfig(name="logs", subject="t.logs.>", fsync="never"))
    assert not metadata.alter(StreamConfig(name="logs", subject="t.logs.>", fsync="never"))
    with pytest.raises(RefusedError):
        metadata.alter(StreamConfig(name="logs", subject="t.other"))


def test_a_snapshot_restores_the_same_state() -> None:
    metadata = Metadata()
    metadata.create(LOGS, "one")
    metadata.create(StreamConfig(name="all", subject="t.>"), "two")
    restored = Metadata.restore(metadata.snapshot())
    assert restored.snapshot() == metadata.snapshot()
    assert sorted(restored.match("t.logs.a")) == ["all", "logs"]


@pytest.mark.parametrize("document", [{}, {"streams": [1]}, {"streams": [{"config": {}}]}])
def test_what_is_not_a_snapshot_is_corrupt(document: dict[str, object]) -> None:
    with pytest.raises(CorruptError):
        Metadata.restore(document)


@pytest.mark.parametrize("name", ["", "..", "a/b", "a b", "x" * 65, "a.b"])
def test_names_that_are_not_safe_in_a_path_are_refused(name: str) -> None:
    with pytest.raises(RefusedError) as raised:
        Metadata().create(StreamConfig(name=name, subject="a"), "one")
    assert raised.value.code == "BAD_NAME"
