"""The Datadog sink."""
