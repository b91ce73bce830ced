"""Building the graph: transforms are made of the configuration, and everything is checked."""

from collections.abc import Mapping
from typing import Any

from typing_extensions import TypeIs

from penstock.collector.config import CollectorConfig, SensitiveSection
from penstock.collector.registry import TRANSFORMS
from penstock.collector.transforms.expressions.subject_template import SubjectTemplate
from penstock.collector.transforms.graph.graph import Graph
from penstock.collector.transforms.graph.wiring import WiringError, wire
from penstock.collector.transforms.grouping.tail_sample import TailSampleSettings
from penstock.collector.transforms.logs_to_metrics import LogsToMetricsSettings
from penstock.collector.transforms.sample import SampleSettings
from penstock.collector.transforms.transform import (
    SettingsError,
    Transform,
    TransformContext,
    TransformSettings,
)
from penstock.service import ConfigError
from penstock.specs.redact.detectors import DETECTORS, Detectors
from penstock.specs.redact.scrubber import Scrubber


def scrubber_of(section: SensitiveSection) -> Scrubber | None:
    """Return the scrubber of the configuration; None when it changes nothing.

    Raises:
        ConfigError: The hash key cannot be read, or is none.
    """
    if not section.enabled:
        return None
    detectors = Detectors(
        frozenset(name for name in DETECTORS if section.detectors.get(name, True)),
        frozenset(section.except_.fields),
        tuple(section.except_.patterns),
        section.mode,
    )
    return Scrubber(
        section.read_hash_key(),
        keyless=section.without_key,
        values=section.search,
        actions=section.actions,
        detectors=detectors,
    )


def build_graph(config: CollectorConfig, resource: Mapping[str, Any]) -> Graph:
    """Make everything the configuration describes.

    Args:
        config: Checked by itself.
        resource: Facts of this host.

    Raises:
        WiringError: The graph is wrong.
        SettingsError: What a transform's settings name cannot be used.
    """
    _refuse_the_same_seed(config.transforms)
    built = {name: _build(name, section, resource) for name, section in config.transforms.items()}
    wiring = wire(
        [source.name or source.type for source in config.sources],
        {name: transform.outputs for name, transform in built.items()},
        {name: section.inputs for name, section in config.transforms.items()},
        config.output.inputs,
    )
    subject = config.output.subject
    return Graph(
        wiring,
        built,
        prefix=config.subject_prefix,
        template=None if subject is None else SubjectTemplate(subject),
        scrubber=scrubber_of(config.sensitive),
    )


def _refuse_the_same_seed(transforms: Mapping[str, TransformSettings]) -> None:
    """A sampler behind another one has to decide by itself: their weights are multiplied."""
    for name, section in transforms.items():
        if not _draws(section):
            continue
        waiting, before = list(section.inputs), set[str]()
        while waiting:
            other = waiting.pop().partition(".")[0]
            if other in before or other not in transforms:
                continue
            before.add(other)
            earlier = transforms[other]
            if isinstance(earlier, LogsToMetricsSettings):
                continue  # what it makes are new records
            waiting += earlier.inputs
            if other != name and _draws(earlier) and earlier.seed == section.seed:
                reason = f"{other} before it keeps the same traces, and weights are multiplied"
                raise WiringError([f"transforms.{name}.seed: {reason}; give it another"])


def _draws(section: TransformSettings) -> TypeIs[SampleSettings | TailSampleSettings]:
    """Return whether a transform keeps traces by chance, which their id and its seed decide."""
    return isinstance(section, SampleSettings) or (
        isinstance(section, TailSampleSettings) and section.draws
    )


def build_checked(config: CollectorConfig, resource: Mapping[str, Any], where: str) -> Graph:
    """`build_graph`, whose errors are those of a configuration.

    Raises:
        ConfigError: With the file, the keys, and what to do.
    """
    try:
        return build_graph(config, resource)
    except (WiringError, SettingsError) as error:
        raise ConfigError(
            "\n".join(f"{where}: {line}" for line in str(error).splitlines()),
            fix="correct the keys named; `penstock collector graph` shows how records go",
        ) from None


def _build(name: str, settings: TransformSettings, resource: Mapping[str, Any]) -> Transform:
    kind = TRANSFORMS.kind(settings.type)
    made: Transform = kind.factory.from_settings(settings, TransformContext(name, resource))
    return made
