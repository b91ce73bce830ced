"""The NATS sink."""
