"""Jobs of Prometheus' `scrape_configs`, as the OpenTelemetry Collector has them, too."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from penstock.collector.importing.draft import Given, listed, seconds, shown

Values = dict[str, Any]

_ROLES: Final = frozenset({"node", "service", "pod", "endpointslice"})


def scrape_jobs(config: Given, *, dollars: bool) -> Iterator[tuple[str, Values, list[str]]]:
    """The name of each job, its source `prometheus`, and what has no counterpart.

    Args:
        config: The section that has `scrape_configs`.
        dollars: `$$` stands for one dollar, as in the OpenTelemetry Collector's configuration.
    """
    common = config.section("global")
    interval, timeout = common.take("scrape_interval"), common.take("scrape_timeout")
    for number, job in enumerate(config.take("scrape_configs", [])):
        given = Given(job, f"{config.where}.scrape_configs.{number}")
        name = str(given.take("job_name", f"job_{number}"))
        notes: list[str] = []
        values = {
            "type": "prometheus",
            "service": name,
            **_targets(given, notes),
            "interval_s": seconds(given.take("scrape_interval", interval)),
            "timeout_s": seconds(given.take("scrape_timeout", timeout)),
            "relabel": _rules(given.take("relabel_configs"), dollars=dollars),
            "metric_relabel": _rules(given.take("metric_relabel_configs"), dollars=dollars),
            "native_histograms": given.take("scrape_native_histograms"),
        }
        yield name, values, [*notes, *given.left()]


def _targets(given: Given, notes: list[str]) -> Values:
    """The keys by which a source finds the job's targets."""
    scheme, path = given.take("scheme", "http"), given.take("metrics_path", "/metrics")
    targets: list[str] = []
    for number, one in enumerate(given.take("static_configs", [])):
        section = Given(one, f"{given.where}.static_configs.{number}")
        targets += [f"{scheme}://{host}{path}" for host in listed(section.take("targets"))]
        notes += section.left()
    files: list[str] = []
    for one in given.take("file_sd_configs", []):
        files += listed(one.get("files"))
    found = {
        "targets": targets or None,
        "files": files or None,
        "dns": _made(given, "dns_sd_configs", _names, notes) or None,
        "kubernetes": _made(given, "kubernetes_sd_configs", _objects, notes) or None,
    }
    if any(found.values()):
        if not targets and (scheme, path) != ("http", "/metrics"):
            notes.append(
                f"{given.where}: {scheme}, {path}: of targets that are found, write them as rules"
                " of `relabel` for __scheme__ and __metrics_path__"
            )
        return found
    notes.append(f"{given.where}: it has no targets that can be found here; write some")
    return {"targets": ["http://127.0.0.1:9090/metrics"]}


def _made(given: Given, key: str, make: Any, notes: list[str]) -> list[Values]:
    found: list[Values] = []
    for number, one in enumerate(given.take(key, [])):
        section = Given(one, f"{given.where}.{key}.{number}")
        section.skip("refresh_interval")
        values = make(section, notes)
        if values is not None:
            found.append({name: value for name, value in values.items() if value is not None})
            notes += section.left()
    return found


def _names(given: Given, notes: list[str]) -> Values | None:
    kind = given.take("type", "SRV")
    port = given.take("port")
    if kind not in {"A", "AAAA", "SRV"} or (kind != "SRV" and port is None):
        notes.append(f"{given.where}: no counterpart: {shown(given.values)}")
        return None
    return {
        "names": listed(given.take("names")),
        "type": kind,
        "port": None if kind == "SRV" else port,
    }


def _objects(given: Given, notes: list[str]) -> Values | None:
    role = given.take("role")
    if role not in _ROLES:
        more = "; write `endpointslice`, whose labels are named so" if role == "endpoints" else ""
        notes.append(f"{given.where}: role {role}: no counterpart{more}")
        return None
    spaces = given.section("namespaces")
    selectors = [one for one in given.take("selectors", []) if one.get("role", role) == role]
    label = ",".join(one["label"] for one in selectors if one.get("label"))
    notes += [
        f"{given.where}.selectors: field: no counterpart: {one['field']}"
        for one in selectors if one.get("field")
    ]  # fmt: skip
    return {
        "role": role,
        "namespaces": listed(spaces.take("names")) or None,
        "label_selector": label or None,
        "server": given.take("api_server"),
    }


def _rules(rules: Any, *, dollars: bool) -> list[Values] | None:
    """The rules, which have Prometheus' keys here, too."""
    made = [dict(one) for one in rules or [] if isinstance(one, Mapping)]
    for rule in made:
        for key in ("regex", "replacement", "separator"):
            if key in rule:
                text = str(rule[key])
                rule[key] = text.replace("$$", "$") if dollars else text
        if "source_labels" in rule:
            rule["source_labels"] = listed(rule["source_labels"])
    return made or None
