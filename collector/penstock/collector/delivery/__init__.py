"""Delivery from the spool to the log: ordered queues, requests, acks, the NATS connection."""
