"""OpenTelemetry's own protocol, over gRPC and HTTP."""
