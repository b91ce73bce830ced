"""Syslog messages, over UDP, TCP, TLS and a Unix socket."""
