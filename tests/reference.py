"""`make reference`: writes docs/reference, parts of other pages, and the blocking client of logd.

What keys mean and how commands are used stands in the READMEs; here is everything there is, with
types, defaults and bounds. A test compares the files with what the code says now.
"""

import ast
import importlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from penstock.base.errors import ExitCode
from penstock.collector.registry import SOURCES, TRANSFORMS
from penstock.deploy.cli import cli
from penstock.logd.api.operations import OPERATIONS, Operation, Shows
from penstock.logd.cli.server import FIXES
from penstock.logd.format.acks import Nack
from penstock.logd.stream_options import StreamOption, stream_options
from penstock.router.sinks.registry import sink_kinds
from penstock.service.config import show_value
from tests import blocking_client
from tests.bench import page
from tests.bench.__main__ import SCENARIOS
from tests.bench.report import read_json

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / "docs" / "reference"
COLLECTOR = ROOT / "docs" / "collector"
SINKS = ROOT / "docs" / "router" / "sinks"
FIGURES = HOME / "figures.json"
"""What `make bench` measured; the pages with figures are made of it."""
_CONFIGURATIONS: Final = {
    "logd": ("penstock.logd.config", "LogdConfig", "docs/logd/configuration.md"),
    "collector": (
        "penstock.collector.config",
        "CollectorConfig",
        "docs/collector/configuration.md",
    ),
    "router": ("penstock.router.job.config", "JobConfig", "docs/router/job-file.md"),
    "console": (
        "penstock.deploy.console.config",
        "ConsoleConfig",
        "deploy/README.md#the-console",
    ),
}
_BOUNDS: Final = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "exclusiveMaximum": "< {}",
    "minLength": "≥ {} characters",
    "maxLength": "≤ {} characters",
    "minItems": "≥ {} items",
    "maxItems": "≤ {} items",
    "pattern": "`{}`",
}
_SECRET = "[secret](../sinks.md#sinks-that-send-requests) (`value`, `file` or `env`)"
_WIDTH = 100
_ACKS = (
    "In the `error` of an ack: `code`, `err_code`, `description`. Where a retry helps, the same "
    "message may be stored later; with `Nats-Msg-Id` a repeat is stored once."
)


def pages() -> dict[str, str]:
    """What the files hold, by name."""
    return {
        "configuration.md": _configuration(),
        "commands.md": _commands(),
        "errors.md": _errors(),
        "modules.md": _modules(),
        "operations.md": _operations(),
        "figures.md": page.figures(
            read_json(FIGURES), {key: one[0][0] for key, one in SCENARIOS.items()}
        ),
    }


def sink_pages() -> dict[Path, str]:
    """The pages of sinks, with what is generated in them: options and guarantee."""
    found = {}
    for kind in sink_kinds():
        path = SINKS / f"{kind.name}.md"
        text = _between(path.read_text(), "options", _options(kind.config.model_json_schema()))
        found[path] = _between(
            text, "guarantee", [f"On replay after a crash: {kind.sink.guarantee}."]
        )
    return found


def size_page() -> dict[Path, str]:
    """The page that sizes an appliance, with the figures that are generated in it."""
    path, scenarios = ROOT / "docs" / "howto" / "size-it.md", read_json(FIGURES)
    text = path.read_text()
    for what, lines in (
        ("parts", page.parts(scenarios)),
        ("logd", page.rules(scenarios, page.LOGD)),
        ("collector", page.rules(scenarios, page.COLLECTOR)),
        ("router", page.rules(scenarios, page.ROUTER)),
    ):
        text = _between(text, what, lines)
    return {path: text}


def beside_page() -> dict[Path, str]:
    """The page on other tools, with the figures that are generated in it."""
    path = ROOT / "docs" / "penstock-beside.md"
    lines = page.beside(read_json(FIGURES), page.JETSTREAM)
    return {path: _between(path.read_text(), "jetstream", lines)}


def option_pages() -> dict[Path, str]:
    """The page of logd's configuration, with the options of a stream that are generated in it."""
    path = ROOT / "docs" / "logd" / "configuration.md"
    text = path.read_text()
    for what, replication in (("stream options", False), ("replication options", True)):
        lines = ["| key | default | meaning |", "|---|---|---|"]
        lines += [_option(one) for one in stream_options() if one.replication is replication]
        text = _between(text, what, lines)
    return {path: text}


def _option(option: StreamOption) -> str:
    if option.required:
        default = "required"
    elif option.default is None:
        default = "none"
    else:
        shown = option.default if option.choices else json.dumps(option.default)
        default = f"`{shown}`"
    return f"| `{option.name}` | {default} | {_cell(option.option.meaning)} |"


def collector_pages() -> dict[Path, str]:
    """The pages of the collector's own sources and transforms, with their generated options."""
    found = {}
    for registry, folder in ((SOURCES, "sources"), (TRANSFORMS, "transforms")):
        for kind in filter(lambda kind: registry.is_own(kind.name), registry.kinds()):
            path = COLLECTOR / folder / f"{kind.name}.md"
            options = _options(kind.settings.model_json_schema(), meaning=True)
            text = "\n".join(options).replace(_SECRET, "secret (`value`, `file` or `env`)")
            found[path] = _between(path.read_text(), "options", text.splitlines())
    return found


def _between(text: str, what: str, lines: Sequence[str]) -> str:
    begin, end = f"<!-- {what}: generated -->\n", "<!-- end -->"
    before, there, after = text.partition(begin)
    assert there, f"a page lacks {begin!r}"
    return "\n".join([before + begin + lines[0], *lines[1:], end + after.partition(end)[2]])


def _options(schema: Mapping[str, Any], *, meaning: bool = False) -> list[str]:
    more = " meaning |" if meaning else ""
    lines = [f"| key | type | default | bounds |{more}", "|---|---|---|---|" + "---|" * meaning]
    rows = _rows(schema, schema.get("$defs", {}), "", {})
    return lines + [f"{row} {told} |" if meaning else row for row, told in rows]


def _rows(
    schema: Mapping[str, Any],
    known: Mapping[str, Any],
    prefix: str,
    defaults: Mapping[str, Any],
) -> Iterator[tuple[str, str]]:
    """Each key's row, and the description of the key."""
    required = schema.get("required", [])
    for key, given in schema["properties"].items():
        value = given | ({"default": defaults[key]} if key in defaults else {})
        names = [it["$ref"] for it in (value, *value.get("anyOf", [])) if "$ref" in it]
        inner = known.get(names[0].rpartition("/")[2], {}) if names else {}
        if "properties" in inner and inner.get("title") != "Secret":
            yield from _rows(inner, known, f"{prefix}{key}.", value.get("default") or {})
            continue
        default = "required" if key in required else _default(value)
        bounds = _cell(_bounds(value))
        kind = _type(value).replace("*Secret*", _SECRET)
        row = f"| `{prefix}{key}` | {kind} | {default} | {bounds} |"
        yield row, _cell(given.get("description", ""))


def _modules() -> str:
    lines = _head(
        "Modules",
        "Every package and module with the first sentence of its docstring. The way of a record "
        "through them: [ARCHITECTURE](../../ARCHITECTURE.md).",
    )
    for home in ("specs", "collector", "logd", "router", "deploy"):
        for init in sorted((ROOT / home / "penstock").rglob("__init__.py")):
            modules = [
                path for path in sorted(init.parent.glob("*.py")) if not path.stem.startswith("__")
            ]
            if init.parent.name == "wire" or not modules:
                continue
            lines += [f"## {init.parent.relative_to(ROOT)}", "", _sentence(init), ""]
            lines += ["| module | what it is |", "|---|---|"]
            lines += [f"| `{path.stem}` | {_cell(_sentence(path))} |" for path in modules]
            lines.append("")
    return _text(lines)


def _sentence(path: Path) -> str:
    """The first paragraph of a module's docstring, on one line."""
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    return " ".join(docstring.partition("\n\n")[0].split())


def _head(title: str, text: str) -> list[str]:
    return [f"# {title}", "", f"Generated by `make reference`. {text}", ""]


def _configuration() -> str:
    lines = _head(
        "Configuration keys",
        "Types, defaults and bounds of every key; a type in *italics* is a section below. An "
        "environment variable overrides a key: `PENSTOCK_LOGD__NATS__URL`.",
    )
    for part, (module, name, where) in _CONFIGURATIONS.items():
        schema = getattr(importlib.import_module(module), name).model_json_schema()
        lines += [f"## {part}", "", f"[What they mean](../../{where}).", ""]
        lines += _section(schema)
        for title, definition in sorted(schema.get("$defs", {}).items()):
            if "properties" in definition:
                lines += [f"### {part}: {title}", "", *_section(definition)]
    return _text(lines)


def _section(schema: Mapping[str, Any]) -> list[str]:
    first = schema.get("description", "").partition("\n\n")[0].replace("\n", " ")
    lines = [first, ""] if first else []
    lines += ["| key | type | default | bounds |", "|---|---|---|---|"]
    required = schema.get("required", [])
    for key, value in schema["properties"].items():
        default = "required" if key in required else _default(value)
        lines.append(f"| `{key}` | {_type(value)} | {default} | {_cell(_bounds(value))} |")
    return [*lines, ""]


def _type(schema: Mapping[str, Any]) -> str:
    match schema:
        case {"$ref": name}:
            found = f"*{name.rpartition('/')[2]}*"
        case {"const": value}:
            found = f"`{value}`"
        case {"enum": values}:
            found = ", ".join(f"`{value}`" for value in values)
        case {"anyOf": choices} | {"oneOf": choices} | {"allOf": choices}:
            found = " or ".join(dict.fromkeys(map(_type, choices)))
        case {"type": "array", "prefixItems": list(items)}:
            found = f"({', '.join(map(_type, items))})"
        case {"type": "array"}:
            found = f"list of {_type(schema.get('items', {}))}"
        case {"type": "object", "additionalProperties": dict(inner)}:
            found = f"mapping to {_type(inner)}"
        case {"type": "object"}:
            found = "mapping"
        case _:
            found = str(schema.get("format", schema.get("type", "anything")))
    return found


def _default(schema: Mapping[str, Any]) -> str:
    if "default" not in schema or isinstance(schema["default"], dict):
        return ""
    default = schema["default"]
    return "none" if default is None else f"`{_cell(show_value(default, schema))}`"


def _bounds(schema: Mapping[str, Any]) -> str:
    own = [
        words.format(show_value(schema[key], schema))
        for key, words in _BOUNDS.items()
        if key in schema
    ]
    return ", ".join(own + [found for one in schema.get("anyOf", []) if (found := _bounds(one))])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _commands() -> str:
    codes = ", ".join(f"{code.value} {code.name.lower()}" for code in ExitCode)
    lines = _head("Commands", f"What each prints with `--help`. Exit codes: {codes}.")
    for command, context in _walk(
        cli, click.Context(cli, info_name="penstock", **cli.context_settings)
    ):
        lines += [f"## {context.command_path}", "", "```text", _help(command, context), "```", ""]
    return _text(lines)


def _walk(
    group: click.Group, context: click.Context
) -> Iterator[tuple[click.Command, click.Context]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = command.context_class(
            command, info_name=name, parent=context, terminal_width=_WIDTH
        )
        yield command, inner
        if isinstance(command, click.Group):
            yield from _walk(command, inner)


def _help(command: click.Command, context: click.Context) -> str:
    return "\n".join(line.rstrip() for line in command.get_help(context).splitlines())


def _errors() -> str:
    lines = _head("Errors", "What logd answers, and what to do.")
    lines += [
        "## To publishers",
        "",
        _ACKS,
        "",
        "| name | code | err_code | a retry helps | do |",
        "|---|---|---|---|---|",
    ]
    for nack in Nack:
        retry = "yes" if nack.retryable else "no"
        fix = _cell(FIXES[nack.name])
        lines.append(f"| `{nack.name}` | {nack.code} | {nack.err_code} | {retry} | {fix} |")
    lines += [
        "",
        "## To readers and commands",
        "",
        "| code | do |",
        "|---|---|",
    ]
    for code in sorted(_refusals() | set(FIXES)):
        lines.append(f"| `{code}` | {_cell(FIXES[code])} |")
    return _text(lines)


def _refusals() -> set[str]:
    """The codes with which logd's code refuses."""
    found = set()
    for path in (ROOT / "logd" / "penstock").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(
                    func=ast.Name(id="RefusedError"), args=[ast.Constant(value=str(code)), *_]
                ):
                    found.add(code)
                case _:
                    pass
    return found


def _operations() -> str:
    lines = _head(
        "Operations",
        "Everything that can be asked of logd's fetch endpoint. A request is a JSON object with "
        "`api`, the operation's name, and `id`, which its answer carries; both are left out below. "
        "How they travel: the docstring of `penstock.logd.api.protocol`. A type in *italics* is a "
        "section at the end.",
    )
    lines += ["| operation | right | who answers | recorded as |", "|---|---|---|---|"]
    for one in OPERATIONS.values():
        audit = f"`{one.audit}`" if one.audit else ""
        lines.append(f"| [{one.name}](#{one.name}) | {one.right} | {one.responder} | {audit} |")
    parts: dict[str, Any] = {}
    for one in OPERATIONS.values():
        lines += ["", f"## {one.name}", "", *_operation(one, parts)]
    for title, definition in sorted(parts.items()):
        if definition.get("properties"):
            lines += ["", f"## {title}", "", *_fields(definition, answer=True)]
    return _text(lines)


def _operation(operation: Operation, parts: dict[str, Any]) -> Iterator[str]:
    text = operation.meaning
    if operation.uploads:
        text += " Bytes follow the request."
    if operation.downloads:
        text += " Whole frames follow the answer."
    if operation.shows is not Shows.ALL:
        text += f" The answer has only the {operation.shows.value} that the caller may see."
    yield text
    kinds = (
        [operation.request] if operation.answer is None else [operation.request, operation.answer]
    )
    schemas, found = msgspec.json.schema_components(kinds)
    own = [schema["$ref"].rpartition("/")[2] for schema in schemas]
    parts |= {name: definition for name, definition in found.items() if name not in own}
    for name, what in zip(own, ("Request", "Answer"), strict=False):
        definition = found[name]
        for key in ("api", "id"):
            definition["properties"].pop(key, None)
        if definition["properties"]:
            yield from ("", f"{what}:", "", *_fields(definition, answer=what == "Answer"))


def _fields(schema: Mapping[str, Any], *, answer: bool) -> Iterator[str]:
    required = schema.get("required", [])
    yield "| key | type | meaning |" if answer else "| key | type | default | bounds | meaning |"
    yield "|---|---|---|" if answer else "|---|---|---|---|---|"
    for key, value in schema["properties"].items():
        meaning = _cell(value.get("description", ""))
        if answer:
            yield f"| `{key}` | {_type(value)} | {meaning} |"
        else:
            default = "required" if key in required else _default(value)
            bounds = _cell(_bounds(value))
            yield f"| `{key}` | {_type(value)} | {default} | {bounds} | {meaning} |"


def _text(lines: list[str]) -> str:
    return "\n".join(lines).rstrip() + "\n"


def main(arguments: Sequence[str]) -> int:
    """Write the files, or with `--check` name those that are not as they should be."""
    HOME.mkdir(exist_ok=True)
    files = {HOME / name: text for name, text in pages().items()}
    files |= sink_pages() | option_pages() | collector_pages() | size_page() | beside_page()
    files[blocking_client.TARGET] = blocking_client.blocking(blocking_client.SOURCE.read_text())
    different = {path: text for path, text in files.items() if _read(path) != text}
    for path, text in different.items():
        sys.stdout.write(f"{path.relative_to(ROOT)}\n")
        if "--check" not in arguments:
            path.write_text(text)
    return int("--check" in arguments and bool(different))


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
