"""Writes what is made of the metrics: their reference, the dashboards, the alert rules.

python -m tests.observability
"""

from tests.observability.files import ROOT, made

if __name__ == "__main__":
    for name, text in made().items():
        (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / name).write_text(text)
        print(name)  # noqa: T201 - that is what the command is for
