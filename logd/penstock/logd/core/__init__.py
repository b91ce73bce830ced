"""logd's decisions as pure code: events and a time go in, effects come out, no I/O."""
