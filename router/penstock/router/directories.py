"""Which of a job's directories may lie where, so that none destroys what another one holds."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_FILES: Final = frozenset({"lock", "format"})
"""What `checkpoint_dir` has of its own under a name that a sink could have."""


def check_directories(
    checkpoint_dir: Path, work_dir: Path, dead_letter_dir: Path, sinks: Iterable[str]
) -> None:
    """Make sure that each sink's directory is its own.

    Args:
        checkpoint_dir: It has a directory of each sink.
        work_dir: Below it, Spark's directory is emptied at each start.
        dead_letter_dir: It has a directory of each sink, too.
        sinks: Their names.

    Raises:
        ValueError: It is not; the text begins with the key.
    """
    names = list(sinks)
    homes = {name: _real(checkpoint_dir / name) for name in names}
    work, letters = _real(work_dir), _real(dead_letter_dir)
    for name, home in homes.items():
        if name in _FILES:
            raise ValueError(f"sinks.{name}: a file in checkpoint_dir has this name; use another")
        if work.is_relative_to(home) or home.is_relative_to(work / "spark"):
            raise ValueError(
                f"sinks.{name}: it keeps its progress in {home}, where work_dir is, which is"
                " emptied at each start; rename the sink or move work_dir"
            )
        if letters.is_relative_to(home) or home in [letters / other for other in names]:
            raise ValueError(
                f"sinks.{name}: it keeps its progress in {home}, where dead_letter_dir has letters;"
                " rename the sink or move dead_letter_dir"
            )


def _real(path: Path) -> Path:
    """Without links, as far as it can be told; whoever uses it tells what is wrong with it."""
    return Path(os.path.realpath(path))
