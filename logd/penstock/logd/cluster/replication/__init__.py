"""Replication between nodes: the shell around `penstock.logd.replication.session`."""

from penstock.logd.cluster.replication.dedup_copies import DEDUP_API
from penstock.logd.cluster.replication.ranges import RANGE_API
from penstock.logd.cluster.replication.sender import (
    FetchCounts,
    Find,
    Frame,
    Hosted,
    ReplicaFetchCounts,
    ReplicaFetchSettings,
)
from penstock.logd.cluster.replication.service import Replication

__all__ = [
    "DEDUP_API",
    "RANGE_API",
    "FetchCounts",
    "Find",
    "Frame",
    "Hosted",
    "ReplicaFetchCounts",
    "ReplicaFetchSettings",
    "Replication",
]
