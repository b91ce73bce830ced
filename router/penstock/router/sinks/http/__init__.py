"""The request sink that sinks over HTTP and gRPC share, and the HTTP sink."""
