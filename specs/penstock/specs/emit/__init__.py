"""What an application calls: its set-up, its loggers, and the emitter that takes its records."""
