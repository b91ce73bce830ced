"""Delivery of requests: results, retries, circuit breaker and rate limit, without I/O."""
