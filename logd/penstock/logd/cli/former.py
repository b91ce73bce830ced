"""Names that commands had before: they still work, and are shown nowhere."""

from typing import Final

import click
from typing_extensions import override

from penstock.service.command import PenstockGroup

_FORMER: Final[dict[tuple[str, ...], tuple[str, ...]]] = {
    ("streams", "list"): ("streams", "ls"),
    ("streams", "show"): ("streams", "info"),
    ("streams", "read-only"): ("streams", "readonly"),
    ("cursors", "list"): ("cursors", "ls"),
    ("groups", "show"): ("groups", "info"),
    ("nodes", "drain"): ("cluster", "drain"),
    ("nodes", "undrain"): ("cluster", "undrain"),
    ("nodes", "remove"): ("cluster", "remove"),
    ("nodes",): ("cluster", "info"),
    ("rebalance",): ("cluster", "rebalance"),
}


class FormerNames(PenstockGroup):
    """A group that takes them for those of today."""

    @override
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        for words in (tuple(args[:2]), tuple(args[:1])):
            if words in _FORMER:
                args = [*_FORMER[words], *args[len(words) :]]
                break
        return super().resolve_command(ctx, args)
