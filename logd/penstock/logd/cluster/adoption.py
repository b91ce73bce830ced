"""Takes the streams of a lone logd into the cluster that its node has become a part of.

Each keeps its data, its incarnation and its offsets, and has one replica until its options are
altered. The file that named them is renamed at last, so that this is done once.
"""

import asyncio
from typing import Final

import structlog

from penstock.logd.cluster.holdings import Holdings
from penstock.logd.cluster.node import ClusterNode
from penstock.logd.core.cluster.commands import AdoptStream
from penstock.logd.core.cluster.records import ReplicationOptions
from penstock.logd.core.cluster.state import Refused
from penstock.logd.core.metadata import Metadata, Stream
from penstock.logd.store import Checkpoint, EpochFile

_ADOPTED: Final = "metadata.adopted"

_log = structlog.get_logger()


async def adopt_streams(holdings: Holdings, node: ClusterNode) -> None:
    """Take them over, if there are any; what the cluster refuses is left as it is, and said.

    Raises:
        CorruptError: The file that names them is damaged.
        OSError: The disk failed.
    """
    path = holdings.data_dir / "metadata"
    document = await asyncio.to_thread(Checkpoint(path).load)
    if document is None:
        return
    streams = list(Metadata.restore(document).streams())
    for stream in streams:
        await _adopt(stream, holdings, node)
    await asyncio.to_thread(path.rename, holdings.data_dir / _ADOPTED)


async def _adopt(stream: Stream, holdings: Holdings, node: ClusterNode) -> None:
    directory = await asyncio.to_thread(holdings.claim, stream.config.name, stream.incarnation)
    if directory is None:
        _log.error("stream not adopted", stream=stream.config.name, reason="its data is missing")
        return
    epochs = await asyncio.to_thread(EpochFile, directory / "epochs")
    command = AdoptStream(
        config=stream.config,
        options=ReplicationOptions(replication_factor=1),
        incarnation=stream.incarnation,
        node=node.name,
        leader_epoch=epochs.latest + 1,
    )
    result = await node.group.insist(command)
    if isinstance(result, Refused):
        _log.error("stream not adopted", stream=stream.config.name, reason=result.message)
    else:
        _log.info("stream adopted", stream=stream.config.name)
