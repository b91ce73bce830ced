"""Raft's shell: what gives the pure core its clock, disk and network.

- `member.Member` drives a member: timer, writing thread, proposals and their outcomes.
- `RaftStorage` executes the core's `Persist`: write-ahead log, snapshots, recovery.
- `codec` turns messages into protobuf and back (`logd/proto/logd_raft.proto`).
"""

from penstock.logd.consensus.recovery import Finding
from penstock.logd.consensus.storage import RaftStorage

__all__ = ["Finding", "RaftStorage"]
