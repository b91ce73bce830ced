"""Each call on a logd as data: the request, and how its answer is read. No I/O.

The blocking and the asyncio client send the same calls and differ only in how they wait.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec

from penstock.logd.api import models, operations
from penstock.logd.api.models import (
    ClusterInfo,
    Cursor,
    Elected,
    GapList,
    GroupInfo,
    OneStream,
    RulePage,
    Standing,
    StreamInfo,
    StreamList,
    Verdict,
)
from penstock.logd.api.operations import Document, End, Request, Responder, operation_of
from penstock.logd.client.access import cause_of_failure, in_words
from penstock.logd.client.results import OFFSETS_HERE, Fetched, HeldRecords, OffsetRange
from penstock.logd.controller.group_messages import Assignment, MemberAnswer, MemberBeat
from penstock.logd.errors import CorruptError, NoAnswerError
from penstock.logd.metadata.records import GroupPartition
from penstock.logd.security.acl import AclRule, Action
from penstock.logd.security.quotas import Quota

Answer_co = TypeVar("Answer_co", covariant=True)
Found = TypeVar("Found")
Model = TypeVar("Model")


@dataclass(frozen=True, slots=True)
class ToPartition:
    """A call that the leader of a partition answers."""

    stream: str
    partition: int


@dataclass(frozen=True, slots=True)
class ToNode:
    """A call that one node answers."""

    node: str


@dataclass(frozen=True, slots=True)
class Call(Generic[Answer_co]):
    """One request.

    Attributes:
        request: Without its id.
        read: Makes the answer of the response's header and payload.
        wait_s: Seconds the server may take on purpose.
        repeatable: Whether it may be sent again when it is not known whether it was done.
        to: The node that answers it; None: any node.
        spread: Whether another replica than the leader may answer it, where that is preferred.
        upload: Bytes that follow the request.
    """

    request: Document
    read: Callable[[Document, memoryview], Answer_co]
    wait_s: float = 0.0
    repeatable: bool = True
    to: ToPartition | ToNode | None = None
    spread: bool = False
    upload: bytes = b""

    def answer(self, header: Document, payload: memoryview, where: str) -> Answer_co:
        """Read a response.

        Raises:
            CorruptError: It is no answer to this request.
        """
        try:
            return self.read(header, payload)
        except (KeyError, TypeError, ValueError, msgspec.ValidationError) as error:
            message = f"the answer to {self.request['api']} is not understood: {error!r}"
            raise CorruptError(message, where=where) from None


_CURSORS: Final = ToPartition("__cursors", 0)


def make(  # noqa: PLR0913 - a call of many optional parts
    request: Request,
    answer: type[Model],
    read: Callable[[Model, memoryview], Found],
    *,
    node: str | None = None,
    wait_s: float = 0.0,
    repeatable: bool = True,
    upload: bytes = b"",
) -> Call[Found]:
    """A call of an operation, which goes to the node that the operation's row names.

    Args:
        request: Says which operation.
        answer: The model of its answers, which the row names, too.
        read: Makes the result of the answer and the payload.
        node: The node that has to answer, of an operation that any node can answer.
        wait_s: Seconds the server may take beyond what the row says.
        repeatable: Whether it may be repeated if the row says so.
        upload: Bytes that follow the request.
    """
    operation = operation_of(request)
    assert operation.answer is answer, operation.name
    to: ToPartition | ToNode | None = None if node is None else ToNode(node)
    if operation.responder is Responder.CURSORS:
        to = _CURSORS
    elif operation.responder in (Responder.LEADER, Responder.COPY):
        assert isinstance(request, operations.OfPartition), request
        to = ToPartition(request.stream, request.partition)
    return Call(
        request.document(),
        lambda header, payload: read(msgspec.convert(_known(header), answer), payload),
        wait_s=operation.wait_s + wait_s,
        repeatable=operation.repeatable and repeatable,
        to=to,
        spread=operation.responder is Responder.COPY,
        upload=upload,
    )


def _known(header: Document) -> Document:
    """A header with -1 for what a node does not know of a partition: 0.1.0 says null."""
    streams = header.get("streams", ()) if "stream" not in header else (header["stream"],)
    for stream in streams:
        if isinstance(stream, dict):
            for part in stream["partitions"]:
                part |= {name: -1 for name in OFFSETS_HERE if part.get(name) is None}
    return header


def _whole(answer: Model, _: memoryview) -> Model:
    return answer


def _done(request: Request) -> Call[None]:
    """A call whose answer says only that it was done."""
    return make(request, models.Nothing, lambda *_: None)


def _stream(request: Request) -> Call[StreamInfo]:
    """A call whose answer is a stream."""
    return make(request, OneStream, lambda answer, _: answer.stream)


def describe(
    name: str | None = None, *, internal: bool = False, node: str | None = None
) -> Call[StreamList]:
    """One stream, or all by name, as any node sees them, or as one does."""

    def read(found: StreamList, _: memoryview) -> StreamList:
        if name is not None and len(found.streams) != 1:
            msg = f"{len(found.streams)} streams are described, not {name!r}"
            raise ValueError(msg)
        return found

    return make(operations.Streams(stream=name, internal=internal), StreamList, read, node=node)


def cluster() -> Call[ClusterInfo]:
    """Return the call for the nodes."""
    return make(operations.Cluster(), ClusterInfo, _whole)


def alter_stream(name: str, options: dict[str, Any]) -> Call[StreamInfo]:
    """Change options of a stream."""
    return _stream(operations.AlterStream(stream=name, options=options))


def set_mode(
    name: str, *, paused: bool | None, read_only: bool | None, held: bool = False
) -> Call[StreamInfo]:
    """Pause or resume a stream, make it read-only or writable."""
    return _stream(
        operations.SetMode(stream=name, paused=paused, read_only=read_only, held=held or None)
    )


def drain(node: str, *, undo: bool) -> Call[None]:
    """Begin to move everything off a node, or end that."""
    return _done(operations.Drain(node=node, undo=undo))


def remove_node(node: str) -> Call[None]:
    """End a node's membership."""
    return _done(operations.RemoveNode(node=node))


def move(stream: str, partition: int, replicas: Sequence[str] | None) -> Call[None]:
    """Begin to move a partition, or give up its move."""
    nodes = None if replicas is None else list(replicas)
    return _done(operations.Move(stream=stream, partition=partition, replicas=nodes))


def observe(stream: str, partition: int, observers: Sequence[str]) -> Call[None]:
    """Have just these nodes hold a copy that never counts."""
    return _done(operations.Observe(stream=stream, partition=partition, observers=list(observers)))


def elect(stream: str, partition: int) -> Call[Elected]:
    """Have a replica lead that lacks acked records."""
    request = operations.Elect(stream=stream, partition=partition, lose_records=True)
    return make(request, Elected, _whole)


def purge(stream: str, partition: int, before: int) -> Call[int]:
    """Take what is below an offset from readers, and delete it."""
    request = operations.Purge(stream=stream, partition=partition, before=before)
    return make(request, models.StartOffset, lambda answer, _: answer.start_offset)


def step_down(target: str | None) -> Call[str]:
    """Have another node be the controller."""
    request = operations.StepDown(target=target)
    return make(request, models.Controller, lambda answer, _: answer.controller)


def gaps(node: str | None) -> Call[GapList]:
    """Return the call for a node's ingest gaps and damaged ranges."""
    return make(operations.Gaps(), GapList, _whole, node=node)


def rebalance() -> Call[int]:
    """Spread replicas and leaderships evenly."""
    return make(operations.Rebalance(), models.Moves, lambda answer, _: answer.moves)


def match(subject: str) -> Call[list[str]]:
    """Names of the streams that store what is published on a subject."""
    request = operations.Match(subject=subject)
    return make(request, models.StreamNames, lambda answer, _: answer.streams)


def create_stream(name: str, subject: str, options: dict[str, Any]) -> Call[StreamInfo]:
    """Create a stream, or find it as asked for."""
    config = {"name": name, "subject": subject} | options
    request = operations.CreateStream(config=config)
    return make(request, models.CreatedStream, lambda answer, _: answer.stream)


def open_stream(name: str, node: str | None = None) -> Call[StreamInfo]:
    """Open a stream that failed, or could not be opened, at the node asked."""
    request = operations.OpenStream(stream=name)
    return make(request, OneStream, lambda answer, _: answer.stream, node=node)


def delete_stream(name: str) -> Call[None]:
    """Delete a stream with its data."""
    return _done(operations.DeleteStream(stream=name))


def offsets(stream: str, partition: int) -> Call[OffsetRange]:
    """Return the call for the readable offsets of a partition."""
    request = operations.Offsets(stream=stream, partition=partition, at="latest")
    return make(request, models.FoundOffset, lambda answer, _: _range(answer))


def offset_at(stream: str, partition: int, at: End | int) -> Call[int]:
    """The offset at `earliest`, `latest` or a timestamp in nanoseconds."""
    request = operations.Offsets(stream=stream, partition=partition, at=at)
    return make(request, models.FoundOffset, lambda answer, _: answer.offset)


def fetch(request: operations.Fetch, *, where: str) -> Call[Fetched]:
    """Read whole frames. `where` is the server, for errors.

    Damage ends the frames, and is an error where it is the first of them.
    """
    where = f"{where} {request.stream}/{request.partition}"

    def read(answer: models.FetchedRange, payload: memoryview) -> Fetched:
        from penstock.logd.format.rows import sound_frames

        frames, are_all = sound_frames(payload, where=where)
        return Fetched(
            frames=frames,
            range=_range(answer),
            high_watermark=answer.high_watermark,
            next_offset=answer.next_offset if are_all else frames[-1][0].next_offset,
            epoch=answer.epoch,
            incarnation=answer.incarnation,
            log_epoch=answer.log_epoch,
        )

    return make(request, models.FetchedRange, read, wait_s=request.wait_ms_max / 1000)


def verify(request: operations.Verify, *, node: str | None) -> Call[HeldRecords]:
    """Return the call for a node's records in a range; without a node, of the asked one."""

    def read(answer: models.HeldRange, payload: memoryview) -> HeldRecords:
        from penstock.logd.format.record_checksums import decode_checksums

        return HeldRecords(answer, decode_checksums(payload))

    return make(request, models.HeldRange, read, node=node)


def find_ids(request: operations.FindIds) -> Call[list[tuple[int, int]]]:
    """The ranges that may hold records with one of some ids."""
    return make(request, models.IdRanges, lambda answer, _: list(answer.ranges))


def restore(stream: str, partition: int, frames: bytes) -> Call[int]:
    """Store frames of a backup; the offset that is wanted next."""
    request = operations.Restore(stream=stream, partition=partition, upload=len(frames))
    return make(request, models.NextOffset, lambda answer, _: answer.next_offset, upload=frames)


def cursors(
    *, consumer: str | None = None, stream: str | None = None, after: Cursor | None = None
) -> Call[tuple[list[Cursor], bool]]:
    """Cursors in order, of one consumer or stream if named, and whether there are more."""
    last: list[str | int] | None = None
    if after is not None:
        last = [after.consumer, after.stream, after.partition]
    request = operations.ListCursors(consumer=consumer, stream=stream, after=last)
    return make(request, models.CursorPage, lambda answer, _: (answer.cursors, answer.more))


def get_cursor(consumer: str, stream: str, partition: int) -> Call[Cursor | None]:
    """One cursor; None where there is none."""
    request = operations.GetCursor(consumer=consumer, stream=stream, partition=partition)
    return make(request, models.CursorList, lambda answer, _: next(iter(answer.cursors), None))


def set_cursors(
    wanted: Sequence[Cursor], *, rewind: bool = False, member: str = ""
) -> Call[list[Cursor]]:
    """Commit cursors, all of them or none; `rewind` allows to go back.

    With `member` they are of partitions that were granted to that member of a group.

    A rewind is not sent again: done twice, it would take back what was committed in between.
    """
    items = [
        operations.SetCursorItem(
            consumer=cursor.consumer,
            stream=cursor.stream,
            partition=cursor.partition,
            offset=cursor.offset,
            incarnation=cursor.incarnation or None,
            epoch=cursor.epoch if member else 0,
        )
        for cursor in wanted
    ]
    request = operations.SetCursor(cursors=items, rewind=rewind, member=member or None)
    return make(request, models.CursorList, lambda answer, _: answer.cursors, repeatable=not rewind)


def delete_cursor(consumer: str, stream: str, partition: int) -> Call[bool]:
    """Delete one cursor; whether it was there."""
    request = operations.DeleteCursor(consumer=consumer, stream=stream, partition=partition)
    return make(request, models.Deleted, lambda answer, _: answer.deleted)


def silent(server: str, seconds: float) -> NoAnswerError:
    """A server that did not answer a call in time."""
    message = f"logd at {server} did not answer within {seconds:g} s"
    return NoAnswerError(message, cause="silent")


def unreachable(server: str, error: OSError) -> NoAnswerError:
    """A server whose connection failed, or could not be made."""
    message = f"logd at {server} cannot be reached: {in_words(error)}"
    return NoAnswerError(message, cause=cause_of_failure(error))


def _range(standing: Standing) -> OffsetRange:
    return OffsetRange(standing.start_offset, standing.high_watermark + 1)


def acls(after: str | None = None) -> Call[RulePage]:
    """Rules in their order, those after one."""
    return make(operations.ListAcls(after=after), RulePage, _whole)


def put_acls(rules: Sequence[AclRule], based_on: int | None = None) -> Call[bool]:
    """Add rules; whether any of them is new."""
    request = operations.PutAcls(rules=list(rules), based_on=based_on)
    return make(request, models.AddedRules, lambda answer, _: answer.changed)


def delete_acls(ids: Sequence[str], based_on: int | None = None) -> Call[bool]:
    """Remove rules, all of them or none."""
    return _change(operations.DeleteAcls(rules=list(ids), based_on=based_on))


def judge(
    action: str, resource: str, *, principal: str | None = None, groups: Sequence[str] = ()
) -> Call[Verdict]:
    """Return the call for the rules' decision on a principal, or on the caller."""
    request = operations.TestAcl(
        action=Action(action), resource=resource, principal=principal, groups=list(groups)
    )
    return make(request, Verdict, _whole)


def who_can(action: str, resource: str) -> Call[list[Verdict]]:
    """Return the call for the rules' decision on every principal that they name."""
    request = operations.WhoCan(action=Action(action), resource=resource)
    return make(request, models.Verdicts, lambda answer, _: answer.principals)


def quotas() -> Call[list[Quota]]:
    """Return the call for all quotas."""
    return make(operations.Quotas(), models.QuotaList, lambda answer, _: answer.quotas)


def put_quota(quota: Quota) -> Call[bool]:
    """Set a quota, in place of what there is."""
    return _change(operations.PutQuota(quota=quota))


def delete_quota(principal: str) -> Call[bool]:
    """Remove a quota."""
    return _change(operations.DeleteQuota(principal=principal))


def _change(request: Request) -> Call[bool]:
    """A call whose answer says whether it changed something."""
    return make(request, models.Changed, lambda answer, _: answer.changed)


def beat(beat: MemberBeat) -> Call[MemberAnswer]:
    """Tell the coordinator that a member is there; any node hands it over."""
    request = operations.GroupBeat(
        group=beat.group,
        member=beat.member,
        streams=list(beat.streams),
        session_ms=beat.session_ms,
        sequence=beat.sequence,
        joining=beat.joining,
        epoch=beat.epoch,
        held=_by_stream(beat.held),
    )
    return make(request, models.HeartbeatAnswer, lambda found, _: _answer(found.answer))


def leave(group: str, member: str) -> Call[None]:
    """Tell the coordinator that a member wants to be none."""
    return _done(operations.GroupLeave(group=group, member=member))


def groups(group: str | None = None) -> Call[list[GroupInfo]]:
    """One group, or all by name."""
    request = operations.Groups(group=group)
    return make(request, models.GroupList, lambda answer, _: answer.groups)


def _by_stream(held: Iterable[GroupPartition]) -> list[operations.HeldPartitions]:
    numbers: dict[tuple[str, str], list[int]] = {}
    for one in held:
        numbers.setdefault((one.stream, one.incarnation), []).append(one.partition)
    return [
        operations.HeldPartitions(stream=stream, incarnation=incarnation, partitions=found)
        for (stream, incarnation), found in numbers.items()
    ]


def _answer(answer: models.CoordinatorAnswer) -> MemberAnswer:
    """The same as nodes have it among themselves: a grant names its partition as a whole."""
    return MemberAnswer(
        group=answer.group,
        member=answer.member,
        sequence=answer.sequence,
        epoch=answer.epoch,
        granted=tuple(
            Assignment(GroupPartition(one.stream, one.incarnation, one.partition), one.epoch)
            for one in answer.granted
        ),
        error=answer.error,
        message=answer.message,
    )
