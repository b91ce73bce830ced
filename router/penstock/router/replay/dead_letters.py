"""Replays of dead letters: files of them are delivered again, and marked as done."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import count

from penstock.router.deadletters.replayable import (
    DeadLetter,
    DeadLetterFile,
    DeadLetterLimits,
    FileBatch,
    MalformedDeadLetterError,
)
from penstock.router.errors import StoppedError
from penstock.router.job.batch_writer import BatchWriter
from penstock.router.read.offsets import StreamPartition
from penstock.router.replay.bounded_run import BoundedRun, ReplayStoppedError
from penstock.router.replay.progress import Report
from penstock.router.sinks import SinkContext
from penstock.service import ConfigError


def replay_dead_letters(
    run: BoundedRun, files: Sequence[DeadLetterFile], sink: str | None, tell: Report
) -> int:
    """Deliver dead letters again, and mark each file once its dead letters are delivered.

    Small files of a sink are delivered together, up to a piece of dead letters; a large one is
    delivered piece by piece. The target's routes apply, conditions and transforms alike: what they
    do not want is reported.

    Args:
        run: The run.
        files: Files to replay.
        sink: The target; without it, the sink that refused them.
        tell: Takes a line for each batch of files.

    Returns:
        How many rows sinks got.

    Raises:
        ConfigError: A target is no sink of the job's.
        MalformedDeadLetterError: Of a file not every dead letter can be delivered; all other files
            are.
        RunFailedError: Spark or the sink failed; the reported files are delivered.
        ReplayStoppedError: `run.stop` was set; likewise.
    """
    progress = run.progress
    progress.unit, progress.of = "files", len(files)
    progress.start_over()
    with ExitStack() as stack:
        replay = _DeadLetterReplay(run, sink, tell, stack)
        try:
            for file in replay.finish_left(files):
                replay.take(file)
            replay.deliver_batch()
        except StoppedError:
            raise ReplayStoppedError(
                f"the replay of dead letters was stopped after {progress}",
                fix="the same replay, asked for again, goes on from there",
            ) from None
    for one in replay.odd.values():
        raise MalformedDeadLetterError(
            f"passed over with others like it: {one}" if len(replay.odd) > 1 else str(one),
            fix=f"{one.fix}; the other files were delivered, and a replay again takes the rest",
        )
    return progress.records


@dataclass(frozen=True, slots=True)
class _Target:
    """A sink that gets dead letters."""

    name: str
    batch_writer: BatchWriter
    context: SinkContext

    @classmethod
    def open(cls, run: BoundedRun, name: str) -> "_Target":
        config = run.config
        if name not in config.sinks:
            raise ConfigError(
                f"the job has no sink {name!r} any more", fix="name another one with --to"
            )
        state_dir = config.checkpoint_dir.resolve() / name / "replay-letters"
        context = run.context(name, state_dir, of_dead_letters=True)
        return cls(name, BatchWriter(config, run.open_sink(name, context), context), context)


class _DeadLetterReplay:
    """Brings files of dead letters to their targets.

    Args:
        sink: The target of all; None: each file's own sink.
        tell: Takes a line for each batch of files.

    Attributes:
        odd: Files of which not every dead letter can be delivered, by name.
    """

    def __init__(self, run: BoundedRun, sink: str | None, tell: Report, stack: ExitStack) -> None:
        self.odd: dict[str, MalformedDeadLetterError] = {}
        self._run = run
        self._sink = sink
        self._tell = tell
        self._stack = stack
        self._targets: dict[str, _Target] = {}
        self._numbers = count()
        self._files: list[DeadLetterFile] = []
        self._names: set[str] = set()
        self._dead_letters: dict[tuple[str, int, int], DeadLetter] = {}
        self._ids: dict[tuple[str, int], str] = {}
        self._bytes = 0

    def finish_left(self, files: Sequence[DeadLetterFile]) -> list[DeadLetterFile]:
        """End or deliver the batches that a replay had in work when it was ended.

        Returns:
            The files that are still to be delivered.
        """
        for home in sorted({file.home for file in files}):
            left = FileBatch.left_in(home)
            if left is None:
                continue
            limits = next(file.limits for file in files if file.home == home)
            held, chosen = left.files(limits), {file.path for file in files}
            if left.delivered:
                for file in held:
                    file.end(sync=False)
                    self._tell(f"{file.name}: was delivered before")
                    self._run.progress.done += file.path in chosen
                left.sync_moves()
                left.remove()
            elif (
                left.target == (self._sink or home.name)
                and len(held) == len(left.names)
                and all(file.path in chosen for file in held)
            ):
                for file in held:
                    self.take(file)
                self.deliver_batch()
            else:
                continue  # its files are delivered as others are
            done = {file.path for file in held}
            files = [file for file in files if file.path not in done]
        return list(files)

    def take(self, file: DeadLetterFile) -> None:
        """Deliver a file, or keep it for the batch that is being filled."""
        if file.name in self.odd:
            return  # it would take the place of the one that stays
        if self._files and (self._files[0].home != file.home or file.name in self._names):
            self.deliver_batch()
        target = self._target(file)
        begun = file.begin(sync=False)
        try:
            dead_letters = begun.whole()
            if dead_letters is None or len({_position(it) for it in dead_letters}) < len(
                dead_letters
            ):
                self.deliver_batch()
                self._deliver_chunks(target, begun)
                return
            if target.batch_writer.needs("subject"):
                begun.require_subjects(dead_letters)
        except MalformedDeadLetterError as error:
            self.odd[file.name] = error
            self._tell(f"{file.name}: passed over: {error}")
            return
        size = begun.path.stat().st_size
        if not self._has_room_for(dead_letters, size, begun.limits):
            self.deliver_batch()
        self._files.append(begun)
        self._names.add(begun.name)
        self._dead_letters |= {_position(dead_letter): dead_letter for dead_letter in dead_letters}
        self._ids |= _ids(dead_letters)
        self._bytes += size

    def deliver_batch(self) -> None:
        """Deliver the files that are kept, and mark them as done."""
        if not self._files:
            return
        files, dead_letters = (
            self._files,
            [self._dead_letters[at] for at in sorted(self._dead_letters)],
        )
        self._files, self._dead_letters, self._bytes = [], {}, 0
        self._names, self._ids = set(), {}
        target = self._target(files[0])
        batch = FileBatch(files[0].home, target.name, tuple(it.path.stem for it in files))
        batch.sync_moves()
        if len(files) > 1:
            batch.keep()
        records, refused = self._counts()
        routed = self._deliver(target, dead_letters)
        if len(files) > 1:
            replace(batch, delivered=True).keep()
        for file in files:
            file.end(sync=False)
        batch.sync_moves()
        batch.remove()
        name = files[0].name
        if len(files) > 1:
            name += f" to {files[-1].path.stem} ({len(files)} files)"
        self._told(name, target, len(dead_letters), routed, records, refused)
        self._run.progress.done += len(files)

    def _deliver_chunks(self, target: _Target, begun: DeadLetterFile) -> None:
        records, refused = self._counts()
        dead_letters = routed = 0
        for chunk in begun.chunks(target.name):
            if target.batch_writer.needs("subject"):
                begun.require_subjects(chunk)
            routed += self._deliver(target, chunk)
            dead_letters += len(chunk)
        begun.end()
        self._told(begun.name, target, dead_letters, routed, records, refused)
        self._run.progress.done += 1

    def _deliver(self, target: _Target, dead_letters: Sequence[DeadLetter]) -> int:
        progress = self._run.progress
        progress.sink, progress.meter = target.name, target.context.meter
        _take_ids(dead_letters, target.context)
        target.batch_writer.start_over()  # offsets of one batch may lie between those of another
        rows = self._run.dead_letter_rows(dead_letters)
        return self._run.deliver(target.batch_writer, target.name, rows, next(self._numbers))

    def _target(self, file: DeadLetterFile) -> _Target:
        name = self._sink or file.sink
        if name not in self._targets:
            self._targets[name] = _Target.open(self._run, name)
            self._stack.callback(self._targets[name].batch_writer.close)
        return self._targets[name]

    def _has_room_for(
        self, dead_letters: Sequence[DeadLetter], size: int, limits: DeadLetterLimits
    ) -> bool:
        """Return whether a file fits into the batch: no record twice, no stream with two ids."""
        return (
            len(self._dead_letters) + len(dead_letters) <= limits.chunk_records
            and self._bytes + size <= limits.chunk_bytes
            and self._dead_letters.keys().isdisjoint(map(_position, dead_letters))
            and all(self._ids.get(at, its) == its for at, its in _ids(dead_letters).items())
        )

    def _counts(self) -> tuple[int, int]:
        return self._run.progress.records, self._run.progress.refused

    def _told(
        self, name: str, target: _Target, dead_letters: int, routed: int, records: int, refused: int
    ) -> None:
        records, refused = (
            now - before for now, before in zip(self._counts(), (records, refused), strict=True)
        )
        notes = f", {refused} refused again" if refused else ""
        if routed < dead_letters:
            notes += f", {dead_letters - routed} that no route leads to {target.name}"
        self._tell(f"{name}: {records} of {dead_letters} to {target.name}{notes}")


def _position(dead_letter: DeadLetter) -> tuple[str, int, int]:
    return dead_letter["stream"], dead_letter["partition"], dead_letter["offset"]


def _ids(dead_letters: Sequence[DeadLetter]) -> dict[tuple[str, int], str]:
    """The ids of streams (at -1) and of their partitions, as dead letters have them."""
    ids: dict[tuple[str, int], str] = {}
    for dead_letter in dead_letters:
        full = dead_letter.get("incarnation") or ""
        ids[dead_letter["stream"], dead_letter["partition"]] = full
        ids[dead_letter["stream"], -1] = full.partition(".")[0]
    return ids


def _take_ids(dead_letters: Sequence[DeadLetter], context: SinkContext) -> None:
    """Know the streams and partitions of dead letters by the ids that they have there."""
    context.generations.clear()
    for dead_letter in dead_letters:
        of_stream, _, number = (dead_letter.get("incarnation") or "").partition(".")
        context.stream_ids[dead_letter["stream"]] = of_stream
        if number.isdecimal():
            at = StreamPartition(dead_letter["stream"], dead_letter["partition"])
            context.generations[at] = ((0, int(number)),)
