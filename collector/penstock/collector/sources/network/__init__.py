"""Listening, TLS and HTTP requests, which network sources share."""
