"""`penstock collector sources` and `transforms` show what the models hold."""

import pytest

from penstock.collector.cli.main import describe_types
from penstock.collector.registry import SOURCES, TRANSFORMS, Registry


@pytest.mark.parametrize("registry", [SOURCES, TRANSFORMS])
def test_every_type_and_every_option_is_listed(registry: Registry) -> None:
    lines = list(describe_types(registry))
    kinds = list(registry.kinds())
    assert [kind.name for kind in kinds] == registry.types()
    for kind in kinds:
        (first,) = (at for at, line in enumerate(lines) if line.startswith(f"{kind.name}: "))
        rest = lines[first + 1 :]
        own = rest[: next((n for n, line in enumerate(rest) if line[0] != " "), len(rest))]
        listed = {line.split()[0] for line in own}
        assert set(kind.settings.model_fields) - {"type"} <= listed


def test_types_bounds_and_defaults_are_shown() -> None:
    text = "\n".join(" ".join(line.split()) for line in describe_types(SOURCES))
    assert "max_line_bytes integer 64..32768 default 32768" in text
    assert "start_at beginning or end default beginning" in text
    assert "tls.cert_file string required PEM:" in text
    assert "mode integer 0..0777 default 0660" in text
    assert "include list required" in text
