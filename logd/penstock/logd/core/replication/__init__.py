"""One partition's replication as pure state machines; `replica.Replica` is the whole of it."""
