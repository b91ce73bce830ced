"""A node's part in its cluster: the metadata that all nodes agree on, and the way there.

`node.ClusterNode` is a member of the metadata group (`penstock.logd.consensus`), registers, holds
a lease by heartbeats, and runs the controller where the group is led. What a node does for the
streams comes in as `node.Replicas`. The daemon does not start one yet: `penstock.logd.streams`
keeps the streams of one node by itself, and `penstock.logd.lone_replica` runs each partition on
the core that replicates. To bring them together:

- `Replicas` opens, leads, follows and deletes partitions as the state says, with
  `core.replication.replica.Replica` for each and a writer that reports in order;
- `replication.Replication` carries what the replicas of different nodes say to each other: it
  serves connections of the purpose REPLICATION, and answers requests `replication.RANGE_API`;
- a lone logd's streams are taken over with `AdoptStream`.
"""
