"""The sidecar agent: takes telemetry, makes it durable, brings it to the log."""
