"""A node's part in its cluster.

`engine.ClusterEngine` is what the daemon runs. In it `node.ClusterNode` is a member of the metadata
group (`penstock.logd.consensus`), registers, holds a lease by heartbeats, and runs the controller
where the group is led. `replicas.NodeReplicas` opens and closes partitions as the state says;
`hosting.HostedReplica` runs the core of each one's replica, and `replication` carries what replicas
say to those on other nodes. `streams.ClusterStreams` is what readers and operators see.
"""
