"""The emitting library: set-up, loggers, and the emitter that takes their records."""
