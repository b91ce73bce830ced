"""Replication between nodes: the shell around `penstock.logd.replication.session`."""

from penstock.logd.cluster.replication.dedup_copies import DEDUP_API
from penstock.logd.cluster.replication.ranges import RANGE_API
from penstock.logd.cluster.replication.sender import (
    FeedCounts,
    FeedSettings,
    FetchCounts,
    Find,
    Frame,
    Hosted,
)
from penstock.logd.cluster.replication.service import Replication

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
