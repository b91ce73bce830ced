"""Byte channels over TCP, plain or with TLS, and what accepts and dials them."""
