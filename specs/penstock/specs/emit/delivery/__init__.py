"""From the queue to the collector: batches in order, acks, the audit journal, the last flush."""
