"""Spec classes found by entry point: installing a team's package makes its specs known.

    [project.entry-points."penstock.specs"]
    shop = "shop.telemetry"

Applications need none of this, since they import what they emit. The collector and the command line
do.
"""

import logging
from functools import cache
from importlib.metadata import entry_points
from typing import Final

GROUP: Final = "penstock.specs"
_LOGGER: Final = logging.getLogger("penstock.specs")


@cache
def discover() -> dict[str, str]:
    """Import every module of the entry-point group, once in a process.

    Returns:
        For each entry point that could not be loaded, why. It is logged, and the others load:
        records of its specs are then judged by the base of their kind.
    """
    failures = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            entry.load()
        except Exception as error:
            failures[entry.name] = f"{entry.value}: {type(error).__name__}: {error}"
            _LOGGER.exception("specs of entry point %s cannot be loaded", entry.name)
    return failures
