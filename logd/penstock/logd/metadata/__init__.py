"""What a cluster agrees on: streams, partitions, nodes, rules, and what changes them."""
