"""An emitter that writes to a file."""

import json
import os
from pathlib import Path
from typing import Any

from penstock.specs import Emitter
from penstock.specs.validate.validator import check_line
from penstock.specs.validate.verdict import Accepted


class Output:
    """An emitter of the service `app`, and the records that it wrote."""

    def __init__(self, path: Path, *, sampling: float = 1.0, machine_facts: bool = False) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
        self.emitter = Emitter(
            {"service.name": "app", "service.instance.id": "i-1"},
            descriptor=self._descriptor,
            sampling=sampling,
            machine_facts=machine_facts,
        )

    def records(self) -> list[dict[str, Any]]:
        assert self.emitter.flush(10)
        lines = self._path.read_bytes().splitlines()
        verdicts = [check_line(line) for line in lines]
        assert all(isinstance(verdict, Accepted) for verdict in verdicts), verdicts
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        self.emitter.close()
        os.close(self._descriptor)
