"""Sources: the places telemetry comes from, one module per type."""
