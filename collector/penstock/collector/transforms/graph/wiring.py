"""The graph as names: which transform takes whose records, and whether that makes sense.

An input is the name of a source or of a transform; of a transform with several outputs,
``NAME.OUTPUT``. Everything must lead to the output: what goes nowhere is an error, not a way to
drop records.
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

OUTPUT: Final = "output"
"""The end of the graph, and the name of its section."""

COPIES_MAX: Final = 64
"""Records that one record may become by being taken as input more than once."""


class WiringError(ValueError):
    """The graph is wrong; one line for each error, beginning with the key it is about."""

    def __init__(self, errors: list[str]) -> None:
        self.errors = errors
        super().__init__("\n".join(errors))


@dataclass(frozen=True, slots=True)
class Wiring:
    """A graph that was found right.

    Attributes:
        order: Transforms, each after those whose records it takes.
        takers: Takers of the records of each source or output (``NAME`` or ``NAME.OUTPUT``):
            transforms, and `OUTPUT`.
    """

    order: list[str]
    takers: Mapping[str, list[str]]


@dataclass(slots=True)
class _Draft:
    sources: list[str]
    outputs: Mapping[str, list[str]]
    inputs: Mapping[str, list[str]]
    errors: list[str] = field(default_factory=list)
    takers: dict[str, list[str]] = field(default_factory=dict)

    def ports(self) -> list[str]:
        """Everything that records come out of."""
        return [*self.sources, *(port for ports in self.outputs.values() for port in ports)]


def wire(
    sources: Iterable[str],
    outputs: Mapping[str, tuple[str, ...]],
    inputs: Mapping[str, list[str]],
    ends: list[str] | None,
) -> Wiring:
    """Check a graph.

    Args:
        sources: Their names.
        outputs: Transform to the names of its outputs; ``("",)`` is its only one.
        inputs: Transform to what it takes.
        ends: Inputs of the output; None: everything that no transform takes.

    Raises:
        WiringError: Something is unknown, goes round in circles, or leads nowhere.
    """
    ports = {
        name: [f"{name}.{part}" if part else name for part in parts]
        for name, parts in outputs.items()
    }
    draft = _Draft(list(sources), ports, inputs)
    for name in sorted(set(draft.sources) & set(ports)):
        draft.errors.append(f"transforms.{name}: a source has that name, too; choose another")
    for name in sorted({OUTPUT, "spool"} & set(ports)):
        draft.errors.append(f"transforms.{name}: that name is taken; choose another")
    draft.takers = {port: [] for port in draft.ports()}
    for name, given in inputs.items():
        _connect(draft, name, f"transforms.{name}.inputs", given)
    if ends is None:
        ends = [port for port, takers in draft.takers.items() if not takers]
    _connect(draft, OUTPUT, "output.inputs", ends)
    _refuse_mistakes(draft)
    order = _ordered(draft)
    _refuse_mistakes(draft)
    _refuse_loose_ends(draft)
    _refuse_floods(draft, order)
    _refuse_mistakes(draft)
    return Wiring(order, draft.takers)


def _refuse_mistakes(draft: _Draft) -> None:
    if draft.errors:
        raise WiringError(draft.errors)


def _connect(draft: _Draft, name: str, key: str, given: list[str]) -> None:
    for index, port in enumerate(given):
        if port in draft.takers:
            if name in draft.takers[port]:
                draft.errors.append(f"{key}.{index}: {port!r} is named twice")
            else:
                draft.takers[port].append(name)
        elif port in draft.outputs:
            known = ", ".join(draft.outputs[port])
            draft.errors.append(f"{key}.{index}: {port!r} has several outputs; name one: {known}")
        else:
            near = difflib.get_close_matches(port, draft.ports(), 1)
            known = ", ".join(draft.ports())
            hint = f"did you mean {near[0]}?" if near else f"there are {known}"
            draft.errors.append(f"{key}.{index}: there is no source or transform {port!r}; {hint}")


def _ordered(draft: _Draft) -> list[str]:
    """Transforms after what they take."""
    waiting = {name: {_owner(draft, port) for port in given} - set(draft.sources)
               for name, given in draft.inputs.items()}  # fmt: skip
    order: list[str] = []
    while waiting:
        ready = [name for name, needs in waiting.items() if needs <= set(order)]
        if not ready:
            circle = _circle(waiting)
            draft.errors.append(
                f"transforms.{circle[0]}.inputs: records would go in a circle: "
                + " -> ".join([*circle, circle[0]])
            )
            return order
        order += ready
        waiting = {name: needs for name, needs in waiting.items() if name not in order}
    return order


def _owner(draft: _Draft, port: str) -> str:
    if port in draft.sources or port in draft.outputs:
        return port
    return next(name for name, ports in draft.outputs.items() if port in ports)


def _circle(waiting: Mapping[str, set[str]]) -> list[str]:
    """One circle, in the direction of the records."""
    seen: list[str] = []
    name = next(iter(waiting))
    while name not in seen:
        seen.append(name)
        name = min(need for need in waiting[name] if need in waiting)
    return seen[seen.index(name) :][::-1]


def _refuse_loose_ends(draft: _Draft) -> None:
    for port, takers in draft.takers.items():
        if takers:
            continue
        kind = "sources" if port in draft.sources else "transforms"
        draft.errors.append(
            f"{kind}.{port}: nobody takes its records; add {port!r} to output.inputs or to a "
            "transform's inputs"
        )


def _refuse_floods(draft: _Draft, order: list[str]) -> None:
    copies = {OUTPUT: 1}
    for name in reversed(order):
        copies[name] = max(_total(copies, draft.takers[port]) for port in draft.outputs[name])
    for source in draft.sources:
        total = _total(copies, draft.takers[source])
        if total > COPIES_MAX:
            draft.errors.append(
                f"sources.{source}: one record would become {total}; at most {COPIES_MAX} are "
                "allowed"
            )


def _total(copies: Mapping[str, int], takers: list[str]) -> int:
    return sum(copies[taker] for taker in takers)
