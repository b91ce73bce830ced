"""Traces across functions, threads and processes, with and without the SDK of OpenTelemetry."""
