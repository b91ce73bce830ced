"""Print what is in this image as a CycloneDX 1.5 document: Python's, Debian's and Java's packages.

    python sbom.py penstock-logd > sbom.cdx.json

Each component has a name, a version, a package URL and, where its metadata says so, a licence. The
document is a function of what is installed: the same packages make the same bytes, so it carries no
time and no random serial number. Standard library alone.
"""

# ruff: noqa: INP001 - a script, not part of a package

import json
import re
import subprocess
import sys
import uuid
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import quote

_JAR = re.compile(r"^(?P<name>.+?)-(?P<version>\d[^/]*)\.jar$")


def document(name: str) -> dict[str, Any]:
    """The whole of it.

    Args:
        name: Name of the image.
    """
    components = sorted([*_python(), *_debian(), *_java()], key=lambda one: str(one["bom-ref"]))
    version = metadata.version("penstock")
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([name, version, components]))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "container", "bom-ref": name, "name": name, "version": version,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            },
        },
        "components": components,
    }  # fmt: skip


def _component(name: str, version: str, purl: str, licence: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl,
    }  # fmt: skip
    if licence:
        found["licenses"] = [{"license": {"name": licence}}]
    return found


def _python() -> list[dict[str, Any]]:
    found = []
    for distribution in metadata.distributions():
        facts = distribution.metadata
        name = re.sub(r"[-_.]+", "-", facts["Name"]).lower()
        licence = facts.get("License-Expression") or facts.get("License") or ""
        purl = f"pkg:pypi/{name}@{quote(distribution.version)}"
        found.append(_component(name, distribution.version, purl, licence.split("\n")[0][:100]))
    return found


def _debian() -> list[dict[str, Any]]:
    shown = "-f=${Package}\\t${Version}\\t${Architecture}\\n"
    listed = subprocess.run(  # noqa: S603 - Debian's own, no shell
        ["/usr/bin/dpkg-query", "-W", shown], capture_output=True, text=True, check=True
    ).stdout
    rows = [line.split("\t") for line in listed.splitlines()]
    return [
        _component(name, version, f"pkg:deb/debian/{name}@{quote(version)}?arch={kind}", None)
        for name, version, kind in rows
    ]


def _java() -> list[dict[str, Any]]:
    matches = [
        _JAR.match(path.name)
        for root in sys.path
        for path in sorted(Path(root).glob("pyspark/jars/*.jar"))
    ]
    return [
        _component(one["name"], one["version"], f"pkg:generic/{one['name']}@{one['version']}", None)
        for one in matches
        if one
    ]


if __name__ == "__main__":
    json.dump(document(sys.argv[1]), sys.stdout, indent=1)
