"""`penstock specs check` and its like, on a project in a directory."""

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from penstock.specs import decode
from penstock.specs.cli import cli
from penstock.specs.models import envelope
from penstock.specs.models.envelope import resolve
from penstock.specs.validate.validator import check_line
from penstock.specs.validate.verdict import Rejected

# Private: a process registers upcasters once, and these tests read many versions of one spec.
from penstock.specs.versions.upcast import _UPCASTERS

ROOT = Path(__file__).resolve().parents[3]
PUBLISHED = ROOT / "specs" / "registry"
NAMES = (f"specs_project_{number}" for number in count())

HEAD = """
from typing import Annotated, Any, Literal
from pydantic import Field
from penstock.specs import Event, Sensitive, View, upcast
"""
FIRST = """
class OrderPlaced(Event, spec="shop.order_placed/1.0"):
    order_id: str
    total: float = Field(ge=0)
"""
MINOR = """
class OrderPlaced(Event, spec="shop.order_placed/1.1"):
    order_id: str
    total: float = Field(ge=0)
    note: str | None = None
"""
MAJOR = """
class OrderPlaced(Event, spec="shop.order_placed/2.0"):
    order_id: str
    total_cents: int = Field(ge=0)
"""
UPCASTER = """
@upcast("shop.order_placed", 1)
def in_cents(record: dict[str, Any]) -> dict[str, Any]:
    attributes = dict(record["attributes"])
    attributes["shop.total_cents"] = round(attributes.pop("shop.total") * 100)
    return {**record, "attributes": attributes}
"""


class Project:
    """A module of specs that is written again, and its registry."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.registry = directory / "registry"
        self.module = ""

    def write(self, text: str) -> None:
        """Make this the project's only version of its specs."""
        forget()
        self.module = next(NAMES)
        (self.directory / f"{self.module}.py").write_text(HEAD + text)

    def run(self, command: str, *arguments: str) -> Result:
        options = ("--registry", str(self.registry), "--module", self.module)
        return CliRunner().invoke(cli, (command, *options, *arguments))

    def publish(self, text: str) -> None:
        self.write(text)
        result = self.run("publish")
        assert result.exit_code == 0, result.output


def forget() -> None:
    envelope._MODELS.pop("shop.order_placed", None)  # noqa: SLF001 - classes register once a process: no other way
    _UPCASTERS.clear()  # as above
    resolve.cache_clear()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield Project(tmp_path)
    forget()
    for name in [name for name in sys.modules if name.startswith("specs_project_")]:
        del sys.modules[name]


def test_published_spec_checks_out_and_an_unpublished_one_does_not(project: Project) -> None:
    project.write(FIRST)
    result = project.run("check")
    assert (result.exit_code, result.stderr) == (65, "1 spec, 1 finding\n")
    assert "run penstock specs publish" in result.stdout
    assert project.run("publish").stdout == "published shop.order_placed/1.0\n"
    assert project.run("check").exit_code == 0
    assert project.run("publish").stdout == ""
    files = sorted(path.name for path in project.registry.glob("*/*"))
    assert files == ["1.0.json", "1.0.ndjson"]
    for line in (project.registry / "shop.order_placed" / "1.0.ndjson").read_bytes().splitlines():
        assert not isinstance(check_line(line), Rejected)


def test_compatible_change_of_a_published_version_is_sent_to_the_next_minor(
    project: Project,
) -> None:
    project.publish(FIRST)
    project.write(MINOR.replace("1.1", "1.0"))
    result = project.run("check")
    assert result.exit_code == 65
    assert "name it shop.order_placed/1.1" in result.stdout
    project.publish(MINOR)
    assert project.run("check").exit_code == 0


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("total: float", "total: int"), "total: type: it cannot read records of 1.0"),
        (("order_id", "order"), "order_id: required: those who know 1.0 cannot read it"),
        (("str | None = None", "str"), "note: required: it cannot read records of 1.0"),
        (("ge=0", "ge=1"), "total: minimum: it cannot read records of 1.0: 0 is below 1"),
    ],
)
def test_breaking_minor_is_refused_with_field_rule_and_fix(
    project: Project, change: tuple[str, str], expected: str
) -> None:
    project.publish(FIRST)
    project.write(MINOR.replace(*change))
    result = project.run("check")
    assert result.exit_code == 65
    assert expected in result.stdout
    assert "or make it shop.order_placed/2.0 with an upcaster" in result.stdout
    before = sorted(project.registry.rglob("*"))
    assert project.run("publish").exit_code == 65
    assert sorted(project.registry.rglob("*")) == before


def test_new_major_needs_an_upcaster_that_keeps_its_word(project: Project) -> None:
    project.publish(FIRST)
    project.write(MAJOR)
    result = project.run("check")
    assert 'define one: @upcast("shop.order_placed", 1)' in result.stdout
    project.publish(MAJOR + UPCASTER)
    upcast = project.registry / "shop.order_placed" / "1.0.upcast.ndjson"
    assert '"shop.total_cents":' in upcast.read_text()
    assert project.run("check").exit_code == 0
    project.write(MAJOR + UPCASTER.replace("* 100", "* 10"))
    assert "is upcast otherwise" in project.run("check").stdout
    project.write(MAJOR + UPCASTER.replace("shop.total_cents", "shop.cents"))
    assert "refuses golden record 1" in project.run("check").stdout


def test_old_major_is_read_through_its_upcaster(project: Project) -> None:
    project.publish(FIRST)
    golden = (project.registry / "shop.order_placed" / "1.0.ndjson").read_bytes().splitlines()[0]
    project.publish(MAJOR + UPCASTER)
    verdict = check_line(golden)
    assert not isinstance(verdict, Rejected)
    assert (verdict.schema, verdict.exact) == ("shop.order_placed/1.0", False)
    assert decode(golden).model_dump()["total_cents"] == 50
    broken = golden.replace(b'"shop.total":', b'"shop.totl":')
    assert check_line(broken) == Rejected("invalid", "upcast: KeyError")
    newer = golden.replace(b"placed/1.0", b"placed/3.0")
    assert check_line(newer) == Rejected("unknown_major")


def test_spec_that_is_gone_is_missed(project: Project) -> None:
    project.publish(FIRST)
    project.write("")
    assert "nothing defines it" in project.run("check").stdout


@pytest.mark.parametrize("command", ["check", "publish"])
def test_a_check_of_nothing_does_not_succeed(project: Project, command: str) -> None:
    """In CI it would hold for ever, because a module was named wrongly or not at all."""
    project.write("")
    result = project.run(command)
    assert result.exit_code == 65
    assert "there is no spec to look at: name its module with --module" in result.stderr


def test_contract_of_a_consumer_is_kept(project: Project) -> None:
    project.publish(FIRST)
    (project.directory / "views.py").write_text(
        HEAD + "class Billing(View, of='shop.order_placed', major=1):\n    total: float\n"
    )
    contract = CliRunner().invoke(cli, ("contract", "views:Billing", "billing"))
    (project.registry / "contracts").mkdir()
    (project.registry / "contracts" / "billing.json").write_text(contract.stdout)
    assert project.run("check").exit_code == 0
    project.write(MAJOR + UPCASTER)
    assert "contract of billing: needs a spec that is not defined" in project.run("check").stdout
    project.write(FIRST.replace("total: float = Field(ge=0)", "total: str"))
    assert "total: contract of billing: type: string is written" in project.run("check").stdout


def test_edited_snapshot_is_noticed(project: Project) -> None:
    project.publish(FIRST)
    git = ("git", "-C", str(project.directory), "-c", "user.name=a", "-c", "user.email=a@b.cc")
    for arguments in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "first")):
        subprocess.run((*git, *arguments), check=True)
    assert project.run("check", "--against", "HEAD").exit_code == 0
    snapshot = project.registry / "shop.order_placed" / "1.0.ndjson"
    snapshot.write_text(snapshot.read_text() + "\n")
    snapshot.write_text(snapshot.read_text().replace("text", "other").strip() + "\n")
    result = project.run("check", "--against", "HEAD")
    assert "1.0.ndjson: published: changed since HEAD" in result.stdout
    assert project.run("check", "--against", "no-such").exit_code == 65


def test_damaged_snapshot_is_named(project: Project) -> None:
    project.publish(FIRST)
    (project.registry / "shop.order_placed" / "1.0.ndjson").unlink()
    result = project.run("check")
    assert result.exit_code == 65
    assert "restore it from version control" in result.stderr


def test_diff_says_who_breaks(project: Project) -> None:
    project.publish(FIRST)
    project.publish(MINOR)
    same = project.run("diff", "shop.order_placed/1.0", "shop.order_placed/1.1")
    assert (same.exit_code, same.stderr) == (0, "fully compatible\n")
    other = project.run("diff", "shop.order_placed/1.0", "event/1.0")
    assert "order_id: required: old readers break: is never written" in other.stdout
    file = project.directory / "schema.json"
    file.write_text(json.dumps({"properties": {}}))
    assert project.run("diff", str(file), "event/1.0").exit_code == 65
    assert "no known spec" in project.run("diff", "event/1.0", "nothing").stderr


def test_new_prints_a_spec_that_works(project: Project) -> None:
    result = CliRunner().invoke(cli, ("new", "shop.order_placed"))
    project.write("")
    (project.directory / f"{project.module}.py").write_text(result.stdout)
    assert project.run("publish").stdout == "published shop.order_placed/1.0\n"
    assert CliRunner().invoke(cli, ("new", "event")).exit_code == 2


def test_field_that_cannot_be_made_up_needs_an_example(project: Project) -> None:
    project.write(FIRST.replace("order_id: str", 'order_id: str = Field(pattern="^o-")'))
    assert "order_id has a pattern; give it examples" in project.run("publish").stderr
    project.publish(
        FIRST.replace("order_id: str", 'order_id: str = Field(pattern="^o-", examples=["o-1"])')
    )


def test_penstocks_own_specs_keep_their_promises() -> None:
    options = ("--registry", str(PUBLISHED), "--module", "penstock.specs")
    result = CliRunner().invoke(cli, ("check", *options))
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "5 specs, 0 findings\n"


def test_specs_are_found_by_entry_point(project: Project) -> None:
    project.write(FIRST)
    info = project.directory / "shop-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shop\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[penstock.specs]\nshop = {project.module}\nbroken = no_such_module\n"
    )
    script = "from penstock.specs.cli import cli; cli(['list'])"
    done = subprocess.run(
        (sys.executable, "-c", script), cwd=project.directory, capture_output=True, text=True,
        env={"PYTHONPATH": str(project.directory)}, check=False,
    )  # fmt: skip
    assert "shop.order_placed/1.0" in done.stdout
    assert "specs of entry point broken cannot be loaded" in done.stderr
