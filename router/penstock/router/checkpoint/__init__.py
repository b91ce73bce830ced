"""Checkpoints of a job: on this machine, and synced to S3 or HDFS under a lease."""
