"""From the spool to the log: ordered queues, requests in flight, acks, the connection to NATS."""
