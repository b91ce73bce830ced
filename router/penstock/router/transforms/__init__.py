"""Transforms of a route, applied to its records between the log and a sink."""

from penstock.router.transforms.chain import Chain, Transformed, without_match
from penstock.router.transforms.dedupe import Again
from penstock.router.transforms.settings import Transform

__all__ = ["Again", "Chain", "Transform", "Transformed", "without_match"]
