"""The OTLP sink."""
