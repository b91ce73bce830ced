"""Encryption at rest: master keys, a log's keys, the cipher of segments."""
