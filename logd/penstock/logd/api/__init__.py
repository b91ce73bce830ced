"""Requests over logd's TCP endpoint: the protocol, its server, and what each operation does."""
