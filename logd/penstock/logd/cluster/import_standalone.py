"""Takes over what 0.1.0 kept outside of a cluster: streams, and rules and quotas.

    <data_dir>/metadata                          which streams there are (a checkpoint)
    <data_dir>/streams/<name>-<incarnation>/0    the log of partition 0, and `purged` beside it
    <data_dir>/access                            rules and quotas (a checkpoint)

Each stream keeps its data, its incarnation and its offsets, and has one replica until its options
are altered. Until that is done the node says so (`Node.adopting`), and no node makes streams from a
configuration, or the stream of cursors, that could have their names. What the cluster refuses stays
in the file that names them, and is tried again at the next start; when none is left, the file is
renamed.

Rules and quotas come before the streams, so that clients that could use those still can. They come
only where the cluster has no others: no operator has asked for both sets together, and
what one allows on `*` would hold for the streams of the other. What is not taken over stays in its
file, no node follows it, and the node's health says so.
"""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

import structlog

from penstock.logd.cluster.directories import ReplicaDirectories
from penstock.logd.cluster.node import ClusterNode
from penstock.logd.errors import CorruptError, UnavailableError
from penstock.logd.limits import ACL_RULES_PER_REQUEST_MAX
from penstock.logd.metadata.access import (
    AccessCommand,
    AccessRecord,
    AccessTable,
    PutAcl,
    PutQuota,
    table_of,
)
from penstock.logd.metadata.codec import read_as
from penstock.logd.metadata.commands import AdoptStream
from penstock.logd.metadata.records import ReplicationOptions
from penstock.logd.metadata.state import ClusterState, Refused, Result
from penstock.logd.metadata.streams import Metadata, Stream, is_internal
from penstock.logd.partition.purge import PURGED_NAME, PurgePoint
from penstock.logd.storage import Checkpoint, EpochFile
from penstock.logd.storage.checkpoint import EPOCHS_NAME

_IMPORTED: Final = "metadata.imported"
_AGAIN_S: Final = 0.2
"""Seconds until the next try, while this node is not registered."""

_log = structlog.get_logger()


def check_imported(state: ClusterState) -> None:
    """Check that no node is about to bring its own streams.

    Raises:
        UnavailableError: One is.
    """
    importing = sorted(name for name, node in state.nodes.items() if node.adopting)
    if importing:
        raise UnavailableError(
            f"streams of before are still taken over from {', '.join(importing)}"
        )


class StreamsImport:
    """Import of the streams of a standalone node. Used on the event loop.

    Args:
        replica_directories: The node's directories.

    Attributes:
        pending: Whether there is something to import.
        problems: Why streams were not imported, by name.
    """

    def __init__(self, replica_directories: ReplicaDirectories) -> None:
        self._replica_directories = replica_directories
        self._file = replica_directories.data_dir / "metadata"
        self.pending = self._file.exists()
        self.problems: dict[str, str] = {}

    async def run(self, node: ClusterNode) -> None:
        """Take over what there is.

        Raises:
            CorruptError: The file that names the streams is damaged.
            OSError: The disk failed.
        """
        if not self.pending:
            return
        document = await asyncio.to_thread(Checkpoint(self._file).load)
        assert document is not None, self._file
        streams = Metadata.restore(document).streams()
        # A consumer that finds its stream finds its cursor, too: logd's own streams go first.
        refused = [
            stream.incarnation
            for stream in sorted(streams, key=lambda stream: not is_internal(stream.config.name))
            if not await self._import(stream, node)
        ]
        if refused:
            left = [item for item in document["streams"] if item["incarnation"] in refused]
            await asyncio.to_thread(Checkpoint(self._file).save, document | {"streams": left})
        else:
            await asyncio.to_thread(
                self._file.rename, self._replica_directories.data_dir / _IMPORTED
            )
        self.pending = False
        node.imported()

    async def _import(self, stream: Stream, node: ClusterNode) -> bool:
        name = stream.config.name
        directory = await asyncio.to_thread(
            self._replica_directories.claim, name, stream.incarnation
        )
        if directory is None:
            return self._refuse(name, "its data is missing")
        try:
            latest_epoch = await asyncio.to_thread(_latest_epoch, directory)
            purged = await asyncio.to_thread(PurgePoint.load, directory)
        except CorruptError as error:  # of this stream; the others come along
            return self._refuse(name, str(error))
        command = AdoptStream(
            config=stream.config,
            options=ReplicationOptions(replication_factor=1),
            incarnation=stream.incarnation,
            node=node.name,
            leader_epoch=max(latest_epoch, purged.epoch) + 1,
            purged=purged.before,
            purge_epoch=purged.epoch,
        )
        while True:
            result = await node.group.insist(command)
            if not isinstance(result, Refused):
                await asyncio.to_thread((directory / PURGED_NAME).unlink, missing_ok=True)
                _log.info("stream_imported", stream=name)
                return True
            if result.code != "UNKNOWN_NODE":  # it is being registered
                return self._refuse(name, result.message)
            await asyncio.sleep(_AGAIN_S)

    def _refuse(self, stream: str, reason: str) -> bool:
        self.problems[stream] = reason
        _log.error("stream_import_failed", stream=stream, reason=reason)
        return False


def _latest_epoch(directory: Path) -> int:
    """The last leader epoch of a log: from its frames if the epoch file cannot say it.

    The file is made again when the log is opened.
    """
    with suppress(CorruptError):
        latest = EpochFile(directory / EPOCHS_NAME).latest
        if latest:
            return latest
    from penstock.logd.offline.fsck import Inspection  # few have anything to import

    inspection = Inspection(directory)
    inspection.run()
    return inspection.epochs[-1][0] if inspection.epochs else 0


_RULES_IMPORTED: Final = "access.imported"


class State(Protocol):
    """The cluster's state, as far as it is about rules."""

    @property
    def access(self) -> AccessTable:
        """Rules and quotas there are."""


class Group(Protocol):
    """The group that applies commands."""

    @property
    def state(self) -> State: ...

    async def insist(self, command: AccessCommand, /) -> Result:
        """Have a command applied, however long that takes."""

    async def catch_up(self) -> None:
        """Wait until the state has all that was committed."""


class RulesImport:
    """Import of the rules and quotas of a standalone node. Used on the event loop.

    Args:
        data_dir: The node's data directory.

    Attributes:
        problem: Why there are rules that are not in force; empty when there are none.
    """

    def __init__(self, data_dir: Path) -> None:
        self.problem = ""
        self._file = data_dir / "access"

    async def run(self, group: Group) -> None:
        """Take over what there is.

        Raises:
            OSError: The disk failed.
        """
        try:
            document = await asyncio.to_thread(Checkpoint(self._file).load)
            if document is None:
                return
            own = table_of(read_as(AccessRecord, document, where=str(self._file)))
        except CorruptError as error:
            self._refuse(str(error))
            return
        while (command := await self._next(group, own)) is not None:
            result = await group.insist(command)
            if isinstance(result, Refused) and result.code != "STALE_VERSION":
                self._refuse(result.message)
        if not self.problem:
            await asyncio.to_thread(self._file.rename, self._file.with_name(_RULES_IMPORTED))
            _log.info("acl_imported", rules=len(own.rules), quotas=len(own.quotas))

    async def _next(self, group: Group, own: AccessTable) -> AccessCommand | None:
        """Return the next command; None: the import is complete, or refused."""
        await group.catch_up()
        present = group.state.access
        foreign = present.rules.keys() - own.rules.keys() or [
            one for one, quota in present.quotas.items() if own.quotas.get(one) != quota
        ]
        if foreign and not self.problem:
            self._refuse("the cluster has its own rules or quotas")
        if self.problem:
            return None
        missing = [rule for one, rule in sorted(own.rules.items()) if one not in present.rules]
        if missing:
            some = tuple(missing[:ACL_RULES_PER_REQUEST_MAX])
            return PutAcl(rules=some, based_on=present.version)
        for principal, quota in sorted(own.quotas.items()):
            if principal not in present.quotas:
                return PutQuota(quota=quota, based_on=present.version)
        return None

    def _refuse(self, reason: str) -> None:
        fix = f"add those that are wanted by hand, then remove {self._file}"
        self.problem = f"rules of before are not in the cluster: {reason}; {fix}"
        _log.error("acl_import_failed", reason=reason)
