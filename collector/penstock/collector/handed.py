"""The configuration that runs, handed to processes that are begun later.

Files may say something else by then, which was refused or never read. What they said travels in an
anonymous file of memory: it may hold secrets, which no argument, variable or file shall show.
"""

import json
import os
from pathlib import Path

from penstock.collector.config_files import Texts


def hand_over(texts: Texts) -> int:
    """A descriptor for a process to inherit; whoever calls closes it."""
    descriptor = os.memfd_create("penstock-collector-config", os.MFD_CLOEXEC)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(json.dumps({str(path): text for path, text in texts.items()}).encode())
    return descriptor


def take_over(descriptor: int) -> Texts:
    """What was handed over; the descriptor is closed.

    Raises:
        OSError: Nothing was.
        ValueError: Likewise.
    """
    with open(descriptor, "rb") as file:
        file.seek(0)
        texts = json.load(file)
    return {Path(path): text for path, text in texts.items()}
