"""OTLP requests, and their elements as record lines."""
