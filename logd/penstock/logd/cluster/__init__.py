"""A node's part in its cluster: the metadata that all nodes agree on, and the way there.

`node.ClusterNode` is a member of the metadata group (`penstock.logd.consensus`), registers, holds
a lease by heartbeats, and runs the controller where the group is led. What a node does for the
streams comes in as `node.Replicas`. The daemon does not start one yet: `penstock.logd.streams`
keeps the streams of one node by itself, and `penstock.logd.lone_replica` runs each partition on
the core that replicates. To bring them together:

- `Replicas` opens, leads, follows and deletes partitions as the state says, with
  `core.replication.replica.Replica` for each and a writer that reports in order;
- followers fetch over a connection of the purpose REPLICATION, one for each pair of nodes
  (`core.replication.session`), and the store learns to begin a log at an offset and to patch a
  range;
- a lone logd's streams are taken over with `AdoptStream`.
"""
