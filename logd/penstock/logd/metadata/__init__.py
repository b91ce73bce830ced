"""The cluster's replicated state: streams, partitions, nodes, rules, and its commands."""
