"""Delivery to the collector: queue, batches in order, acks, audit journal, last flush."""
