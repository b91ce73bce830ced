"""What becomes of a backup, and of a restore, when the stream does not stay as it was."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.logd.cli.backup import (
    BackupOvertakenError,
    PartitionCopy,
    PartitionSender,
    check_begun,
)
from penstock.logd.cli.output import Progress
from penstock.logd.cli.server import AskRefusedError
from penstock.logd.client import Fetched, OffsetRange
from penstock.logd.client.calls import Call
from penstock.logd.errors import RefusedError, UnavailableError
from penstock.logd.format.batch import Record
from penstock.logd.format.frame import encode_header
from penstock.logd.offline.backup import PARTIAL, BackupFile, BackupPartition, Manifest
from tests.support.frames import make_batch_frame, make_frames

Answer = Fetched | Exception | int


class Log:
    """Answers fetches and restores one after another; keeps what was asked."""

    server = "127.0.0.1:1"

    def __init__(self, *answers: Answer, ends: tuple[int | Exception, ...] = ()) -> None:
        self.answers = list(answers)
        self.ends = list(ends)
        self.asked: list[dict[str, Any]] = []
        self.sent: list[bytes] = []

    def ask(self, call: Call[Any]) -> Any:
        self.asked.append(dict(call.request))
        self.sent.append(call.upload)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def offsets(self, stream: str, partition: int) -> OffsetRange:
        end = self.ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return OffsetRange(0, end)


def fetched(*offsets: int, epoch: int = 3, end: int = 4) -> Fetched:
    made = [make_batch_frame(offset, [Record("a", b"x", 1)]) for offset in offsets]
    frames = [(header, memoryview(body)) for header, body, _ in made]
    after = offsets[-1] + 1 if offsets else end
    return Fetched(
        frames=frames,
        range=OffsetRange(0, end),
        high_watermark=end - 1,
        next_offset=after,
        epoch=epoch,
        incarnation="x",
        log_epoch=epoch,
    )


def copied(
    directory: Path, log: Log, manifest: Manifest | None = None, *, short_s: float = 30.0
) -> Manifest:
    manifest = manifest or Manifest("1", "", "logs", "a", "x", {}, [BackupPartition(0, 4)])
    progress = Progress("copying", 4)
    copy = PartitionCopy(
        cast("Any", log), manifest, 0, directory, progress, pause_s=0.0, short_s=short_s
    )
    copy.run()
    return manifest


def test_the_epoch_that_was_read_goes_with_each_fetch_and_into_the_manifest(
    tmp_path: Path,
) -> None:
    log = Log(fetched(0, 1, epoch=3), fetched(2, 3, epoch=5))
    manifest = copied(tmp_path, log)
    assert [one.get("log_epoch") for one in log.asked] == [None, 3]
    found = Manifest.load(tmp_path / PARTIAL)
    assert found == manifest
    assert found.partitions[0].epoch == 5


def test_a_backup_that_goes_on_knows_what_it_has_read(tmp_path: Path) -> None:
    """Else an election meanwhile that loses records would mix two histories."""
    part = BackupPartition(0, 4, epoch=7)
    Manifest("1", "", "logs", "a", "x", {}, [part]).save(tmp_path / PARTIAL)
    manifest = Manifest.load(tmp_path / PARTIAL)
    assert manifest is not None
    log = Log(RefusedError("RECORDS_LOST", "no", offset=2))
    with pytest.raises(BackupOvertakenError, match="lost records from offset 2 on") as error:
        copied(tmp_path, log, manifest)
    assert log.asked[0]["log_epoch"] == 7
    assert (error.value.exit_code, "begin again" in str(error.value)) == (65, True)


def test_what_an_older_release_has_copied_is_not_gone_on_with(tmp_path: Path) -> None:
    """It did not keep the epoch, so nobody can tell whether what is there now follows it."""
    file = BackupFile("0-0.frames", 0, 2, 1, 2, 0)
    parts = [BackupPartition(0, 4), BackupPartition(0, 4, [file])]
    manifest = Manifest("1", "", "logs", "a", "x", {}, parts)
    with pytest.raises(BackupOvertakenError, match=r"(?s)logs/1 is still there.*another directory"):
        check_begun(manifest, tmp_path)
    parts[1].epoch = 0
    check_begun(manifest, tmp_path)


def test_a_server_that_does_not_say_the_epoch_is_not_copied_from(tmp_path: Path) -> None:
    silent = replace(fetched(0, 1, 2, 3), log_epoch=None)
    with pytest.raises(AskRefusedError, match="upgrade logd"):
        copied(tmp_path, Log(silent))
    assert not (tmp_path / PARTIAL).exists()


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        (RefusedError("OUT_OF_RANGE", "no", earliest=3, latest=9), "offsets 2 to 2 were deleted"),
        (RefusedError("STREAM_RECREATED", "no", incarnation="y"), "was deleted meanwhile"),
        (RefusedError("UNKNOWN_STREAM", "no"), "was deleted meanwhile"),
    ],
)
def test_what_is_gone_ends_a_backup_and_is_named(
    tmp_path: Path, refusal: RefusedError, said: str
) -> None:
    with pytest.raises(BackupOvertakenError, match=said):
        copied(tmp_path, Log(fetched(0, 1), refusal))
    assert not (tmp_path / PARTIAL).exists(), "no file is named that is not whole"


def test_an_end_that_comes_back_is_waited_for_and_one_that_does_not_is_lost(
    tmp_path: Path,
) -> None:
    """A new leader learns a moment later what was committed."""
    behind = RefusedError("OUT_OF_RANGE", "no", earliest=0, latest=1)
    copied(tmp_path, Log(fetched(0, 1), behind, fetched(end=2), fetched(2, 3)))
    with pytest.raises(BackupOvertakenError, match="nothing is committed from offset 2 on"):
        copied(tmp_path, Log(fetched(0, 1), fetched(end=2)), short_s=0.0)


def refused_at(offset: int) -> RefusedError:
    return RefusedError("WRONG_OFFSET", "no", next_offset=offset)


def sending(log: Log) -> PartitionSender:
    return PartitionSender(cast("Any", log), "logs", 0, 60.0, pause_s=0.0)


def test_frames_that_only_the_leader_has_are_not_taken_for_restored() -> None:
    """The answer was lost; the leader had them, was lost, too, and another one wants them again."""
    log = Log(UnavailableError("?"), refused_at(9), refused_at(9), 9, ends=(5, 5))
    sending(log).send(b"frames", 9)
    assert len(log.asked) == 4
    log = Log(refused_at(9), ends=(UnavailableError("?"), 9))
    sending(log).send(b"frames", 9)
    assert len(log.asked) == 2


def backed_up(start: int, end: int) -> bytes:
    made = make_frames(start, [bytes(8)] * (end - start))
    return b"".join(encode_header(header) + body for header, body in made)


def test_what_only_the_leader_has_of_an_earlier_run_is_waited_for() -> None:
    """A run begins where the committed ends; the leader wants what follows what it has."""
    log = Log(refused_at(7), refused_at(7), 9, ends=(5, 7))
    sending(log).send(backed_up(5, 9), 9)
    assert log.sent == [backed_up(5, 9), backed_up(5, 9), backed_up(7, 9)]
    log = Log(refused_at(12), ends=(5, 12))
    sending(log).send(backed_up(5, 9), 9)
    assert len(log.asked) == 2


def test_what_only_the_leader_has_is_not_waited_for_for_ever() -> None:
    log = Log(refused_at(7), ends=(5,))
    with pytest.raises(RefusedError, match="no"):
        PartitionSender(cast("Any", log), "logs", 0, -1.0).send(backed_up(5, 9), 9)
    log = Log(refused_at(3), ends=(3,))
    with pytest.raises(RefusedError, match="no"):  # what was committed is gone
        sending(log).send(backed_up(5, 9), 9)


def test_a_restore_goes_on_where_whoever_leads_is_and_waits_for_one() -> None:
    """`streams` says -1 of a partition that nobody leads: that is not its beginning."""
    log = Log(0, ends=(UnavailableError("?"), RefusedError("NOT_HERE", "no"), 7))
    assert sending(log).wanted() == 7
    away = Log(0, ends=(UnavailableError("?"),))
    with pytest.raises(UnavailableError):
        PartitionSender(cast("Any", away), "logs", 0, -1.0).wanted()
