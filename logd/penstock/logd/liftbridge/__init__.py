"""Liftbridge's gRPC service, answered from this daemon's streams (docs/compatibility.md)."""
