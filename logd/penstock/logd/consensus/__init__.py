"""Raft's shell: what gives the pure core its clock, disk and network."""
