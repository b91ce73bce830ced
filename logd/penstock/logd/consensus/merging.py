"""Group commit of Raft's steps: what waited while one sync ran is made durable by the next one."""

from collections.abc import Iterable

from penstock.logd.core.raft import Entry, Persist


def merge_steps(steps: Iterable[Persist]) -> list[Persist]:
    """As few steps as leave the same behind; each snapshot begins a new one.

    Args:
        steps: In order, at least one.

    Returns:
        Steps to be made durable in order; the last one's number stands for all.
    """
    merged: list[Persist] = []
    for step in steps:
        if not merged or step.snapshot is not None:
            merged.append(step)
            continue
        last = merged[-1]
        merged[-1] = Persist(
            number=step.number,
            hard_state=step.hard_state or last.hard_state,
            snapshot=last.snapshot,
            installed=last.installed,
            entries=_replaced(last.entries, step.entries),
        )
    return merged


def _replaced(entries: tuple[Entry, ...], later: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """What is left of entries when later ones take the place of those at and after their first."""
    if not later:
        return entries
    first = later[0].index
    return (*(entry for entry in entries if entry.index < first), *later)
