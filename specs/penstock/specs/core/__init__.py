"""The emitter's decisions, without I/O: what to hold, drop, send and send again."""
