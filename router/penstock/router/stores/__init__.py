"""Stores that keep a job's checkpoints where the job's machine is not: S3, HDFS."""

from penstock.router.stores.objects import Objects
from penstock.router.stores.settings import AnyStore
from penstock.router.stores.table import open_store

__all__ = ["AnyStore", "Objects", "open_store"]
