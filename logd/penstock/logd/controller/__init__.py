"""The controller of a cluster: elections, liveness, placement, consumer groups."""
