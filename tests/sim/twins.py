"""Twins: hand-made mutants of the code under test, each of which its simulation must catch.

A simulation that does not see a rule broken proves nothing about it. So each rule has a twin: what
runs in production, but for one thing that is changed in place, as others have got it wrong before.
That is why twins, and they alone, replace attributes of what they test, and why they may name
private ones: a `Mutation` is the only way to, and coverage marks, which change nothing and count,
go the same way. Wherever a rule can be broken from outside, by a disk that lies, by an input, or by
a public method or effect, a twin does that; a private name stands where the rule is one of several
things that a public method does.
"""

import importlib
from collections.abc import Callable
from typing import Any, Self

import pytest


class Mutation:
    """One thing, or several that belong together, changed until the block ends."""

    def __init__(self) -> None:
        self._patch = pytest.MonkeyPatch()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.undo()

    def replace(self, owner: object, name: str, broken: object) -> None:
        """Put something in the place of what a class or module has by a name.

        Args:
            owner: Or the module's name.
            name: It is there.
            broken: What is there from now on.
        """
        place = importlib.import_module(owner) if isinstance(owner, str) else owner
        self._patch.setattr(place, name, broken)

    def wrap(self, owner: object, name: str, broken: Callable[..., Any]) -> None:
        """Have a function or method do something else, given what it was, then its arguments."""
        really = getattr(owner, name)
        self.replace(owner, name, lambda *args, **named: broken(really, *args, **named))
