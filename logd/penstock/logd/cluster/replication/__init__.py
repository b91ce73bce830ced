"""Replication between nodes: the shell around `penstock.logd.core.replication.session`."""

from penstock.logd.cluster.replication.dedup_copies import DEDUP_API
from penstock.logd.cluster.replication.frames import Frame
from penstock.logd.cluster.replication.hosted import (
    FeedCounts,
    FeedSettings,
    FetchCounts,
    Find,
    Hosted,
)
from penstock.logd.cluster.replication.ranges import RANGE_API
from penstock.logd.cluster.replication.replicating import Replication

__all__ = [
    "DEDUP_API",
    "RANGE_API",
    "FeedCounts",
    "FeedSettings",
    "FetchCounts",
    "Find",
    "Frame",
    "Hosted",
    "Replication",
]
