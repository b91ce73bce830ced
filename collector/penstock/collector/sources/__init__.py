"""Where telemetry comes from, one module per type."""
