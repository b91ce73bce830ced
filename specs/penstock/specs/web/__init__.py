"""Servers: each request has a trace, a context and a record of how it went."""
