"""The interface of a source: its life, and what the agent gives it.

A source of a third party is a class like those here: `settings` is the model of its section of the
configuration, `from_settings` makes it, `start`, `run` and `stop` are its life. See
docs/howto/write-a-source.md.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

from penstock.base.clock import Clock
from penstock.collector.delivery.pipeline import Pipeline
from penstock.collector.delivery.publisher import Sender
from penstock.collector.descriptors import Descriptors
from penstock.collector.ledger import Ledger
from penstock.collector.sources.files.identity import Generations
from penstock.collector.sources.settings import SourceSettings
from penstock.collector.spool.memory_budget import Budget, Share
from penstock.collector.spool.spool import Spooling
from penstock.collector.spool.writer import SpoolWriter


@dataclass(frozen=True, slots=True)
class SourceContext:
    """Everything of the collector that some source needs.

    Attributes:
        name: The source's, unique in the configuration.
        resource: The collector's defaults.
        budget: Budget of network sources.
        descriptors: Budget of open files.
        save: Makes the checkpoint durable, and says whether it could.
        known: Names of file sources that ran before.
        data_dir: Directory for a source's own files.
        node: This collector's name, which is the node's where Kubernetes runs one on each.
    """

    name: str
    resource: Mapping[str, Any]
    budget: Budget
    descriptors: Descriptors
    spool: Spooling
    ledger: Ledger
    clock: Clock
    generations: Generations
    pipeline: Pipeline
    sender: Sender
    save: Callable[[], Awaitable[bool]]
    known: frozenset[str]
    data_dir: Path
    node: str

    @property
    def share(self) -> Share:
        """This source's share of the receive budget."""
        return self.budget.share(self.name)

    def spool_writer(self) -> SpoolWriter:
        """This source's way into the spool."""
        return SpoolWriter(
            self.name, spool=self.spool, ledger=self.ledger, clock=self.clock, share=self.share
        )


class Source(Protocol):
    """Receives records until it is stopped.

    Attributes:
        settings: The model of its section of the configuration.
        name: The configured name; unique.
    """

    settings: ClassVar[type[SourceSettings]]
    name: str

    @classmethod
    def from_settings(cls, settings: Any, context: SourceContext) -> Self:
        """Make the source; `settings` is an instance of the class's own."""
        ...

    async def start(self) -> None:
        """Begin to listen.

        Raises:
            ServiceError: It cannot; the operator must change something.
        """
        ...

    async def run(self) -> None:
        """Receive until `stop`; returns when the input has ended for good."""
        ...

    async def stop(self) -> None:
        """Take nothing more; what was taken is in the spool or will be refused."""
        ...

    @property
    def trouble(self) -> str:
        """Why it receives nothing though it runs; empty when it does."""
        return ""

    @property
    def endpoint(self) -> str | None:
        """The address it listens on; None when it listens nowhere and its `run` ends by itself."""
        return None

    @property
    def endpoints(self) -> Mapping[str, str]:
        """The addresses of a source that has several, by what is spoken there."""
        return {}
