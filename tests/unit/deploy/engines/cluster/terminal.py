"""A person at a terminal, whose kubeconfig names a stand-in for an API server."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deploy import doctor, down, logs, smoke, status, up
from tests.api_server import Cluster, Object, container

DIGEST = f"sha256:{'ab' * 32}"
IMAGE = f"registry.example.org/lab/numl@{DIGEST}"
COMMANDS = {
    **{"up": up, "status": status, "logs": logs, "smoke": smoke, "down": down, "doctor": doctor}
}


@dataclass
class Terminal:
    """Where a person types commands; the words of one, then its status and both outputs."""

    cluster: Cluster
    folder: Path
    capsys: pytest.CaptureFixture[str]

    def type(self, line: str) -> tuple[int, str, str]:
        command, *words = line.split()
        try:
            code = COMMANDS[command].main(words)
        except SystemExit as ended:
            code = int(str(ended.code))
        said = self.capsys.readouterr()
        return code, said.out, said.err

    def json(self, line: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.type(f"{line} --json")[1])
        return document

    def site(self, text: str) -> Path:
        file = self.folder / "site.toml"
        file.write_text(f'engine = "kubernetes"\n{text}')
        return file


def waiting(reason: str, message: str) -> Callable[[Object], Object]:
    """Return what makes pods that wait for a reason."""

    def made(pod: Object) -> Object:
        main = pod["spec"]["containers"][0]
        state = {"waiting": {"reason": reason, "message": message}}
        return {"containerStatuses": [container(main["name"], main["image"], state)]}

    return made
