"""Each source and transform has a page with the same parts, and what a page shows works."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.collector.agent.derived_config import graph_of
from penstock.collector.config import CollectorConfig
from penstock.collector.registry import SOURCES, TRANSFORMS
from tests.support.geoip import SHOWN, city_database

HOME = Path("docs/collector")
PAGES = {
    **{f"sources/{name}": "Source" for name in SOURCES.types()},
    **{f"transforms/{name}": "Transform" for name in TRANSFORMS.types()},
}
HEADINGS = [
    "What it takes", "Minimal configuration", "Options", "What is acknowledged when", "Limits",
    "Errors", "Metrics",
]  # fmt: skip


@pytest.mark.parametrize("name", PAGES)
def test_each_type_has_a_page_with_the_same_headings(name: str) -> None:
    text = (HOME / f"{name}.md").read_text()
    assert text.startswith(f"# {PAGES[name]} `{name.partition('/')[2]}`\n")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == HEADINGS
    assert all(part.strip() for part in re.split(r"^## .+$", text, flags=re.MULTILINE)[1:])


@pytest.mark.parametrize("folder", ["sources", "transforms"])
def test_no_page_is_left_of_a_type_that_is_gone(folder: str) -> None:
    found = {f"{folder}/{path.stem}" for path in (HOME / folder).glob("*.md")}
    assert found == {name for name in PAGES if name.startswith(folder)}


@pytest.mark.parametrize("name", PAGES)
def test_the_minimal_configuration_of_a_page_loads(name: str, tmp_path: Path) -> None:
    text = (HOME / f"{name}.md").read_text().partition("## Minimal configuration")[2]
    shown = re.search(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert shown is not None
    example = shown[1]
    if SHOWN in example:
        example = example.replace(SHOWN, str(city_database(tmp_path)))
    given: Any = yaml.safe_load(example)
    app = {"type": "unix", "name": "app", "path": "/run/app.sock"}
    config = CollectorConfig.model_validate({"data_dir": "/d", "sources": [app], **given})
    kind = name.partition("/")[2]
    types = {one.type for one in config.sources}
    types |= {one.type for one in config.transforms.values()}
    assert kind in types
    assert graph_of(config, "collector.yaml").wiring.takers
