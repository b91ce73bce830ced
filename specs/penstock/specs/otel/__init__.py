"""OpenTelemetry's exporters that emit records."""
