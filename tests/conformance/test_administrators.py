"""The walk of docs/administrators.md, by its own commands."""

import re
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from deploy.artefacts.manifest import record
from deploy.host.files import sha256_of
from deploy.host.paths import CHECKOUT
from tests.artefacts import artefact
from tests.conformance.test_documentation import SIF
from tests.kit import Kit, free_ports, until
from tests.pages import shown
from tests.programs import run_program

PAGE = CHECKOUT / "docs/administrators.md"
PLACE = "/cvmfs/example.org/numl"
# The CI makes the kit's environment, and the .sif with that very command.
MADE = ("scripts/kit-environment", ". .venv/bin/activate", "numlkit build --target sif")
# Nothing here runs systemd.
NOT_HERE = ("systemctl --user enable --now numl.service", "loginctl enable-linger")


@dataclass
class Walk:
    """Types the page's commands, with its folder in another place and ports that are free."""

    kit: Kit
    folder: Path
    left: list[str] = field(default_factory=lambda: [line.text for line in shown(PAGE)])

    @property
    def place(self) -> Path:
        return self.folder / "cvmfs"

    def words(self, text: str, *more: str) -> list[str]:
        self.left = [line for line in self.left if line != text]
        words = [word.replace(PLACE, str(self.place)) for word in text.split()]
        return [str(Path(sys.executable).with_name(words[0])), *words[1:], *more]

    def type(self, text: str, *more: str, status: tuple[int, ...] = (0,)) -> str:
        done = run_program(self.words(text, *more), cwd=self.folder, env=self.kit.variables)
        assert done.returncode in status, done.stdout + done.stderr
        return done.stdout + done.stderr

    def sif(self, name: str, more: bytes) -> str:
        """Return a .sif like the built one, made to differ by what follows its content."""
        path = self.folder / name / "numl.sif"
        path.parent.mkdir()
        shutil.copy(CHECKOUT / "dist" / Path(SIF).name, path)
        with path.open("ab") as file:
            file.write(more)
        record(path.parent, artefact("sif", path.name, sha256_of(path), path.stat().st_size))
        return str(path)

    def serves(self) -> str:
        """Return the release that is current, while the server is healthy."""
        assert self.kit.json("status", "--name", "gpvm")["ok"]
        return str((self.place / "current").readlink())

    def watch(self) -> None:
        """Watch until every model's values are right."""
        port = str(free_ports().http)
        words = self.words("numlkit smoke --watch --name gpvm", "--metrics", port)
        right = 'numl_smoke_state{server="grpc://.*",model="nugraph3",state="right"} 1\n'
        with subprocess.Popen(words, env=self.kit.variables) as process:
            try:
                until(lambda: bool(re.search(right, metrics(port))), "a right answer")
            finally:
                process.send_signal(signal.SIGTERM)
        assert process.returncode == 0


def metrics(port: str) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


@pytest.fixture
def walk(kit):
    if kit.engine != "apptainer":
        pytest.skip("the walk is shown for Apptainer")
    with tempfile.TemporaryDirectory(prefix="numlkit-test-walk-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        walk = Walk(kit, folder)
        walk.place.mkdir()
        site = (CHECKOUT / "deploy/sites/gpvm.toml").read_text()
        ports = "\n".join(f"{use} = {port}" for use, port in free_ports().model_dump().items())
        assert PLACE in site
        text = f"{site.replace(PLACE, str(walk.place))}\n[ports]\n{ports}\n"
        (folder / "gpvm.toml").write_text(text)
        yield walk
        kit.run("down", "--name", "gpvm")


def test_a_release_is_published_upgraded_and_rolled_back_and_a_broken_one_is_caught(walk):
    walk.left = [text for text in walk.left if text not in (*MADE, *NOT_HERE)]
    walk.type("numlkit doctor", status=(0, 1))  # what it finds is about this host
    publish = f"numlkit publish {PLACE}"
    first, second = walk.sif("first", b""), walk.sif("second", b"\0")
    walk.type(f"{publish} --dry-run", "--image", first)
    assert not any(walk.place.iterdir())
    walk.type(publish, "--image", first)
    walk.type("numlkit up gpvm.toml")
    assert "ready" in walk.type("numlkit status --name gpvm")
    assert "nugraph3" in walk.type("numlkit smoke --name gpvm")
    walk.watch()
    assert walk.serves() == "1"

    walk.type(publish, "--image", second)
    assert "2" in walk.type(f"numlkit published {PLACE}")
    walk.type("numlkit down --name gpvm")
    walk.type("numlkit up gpvm.toml")
    assert walk.serves() == "2"

    broken = walk.sif("broken", b"\0\0")
    with Path(broken).open("ab") as file:
        file.write(b"half of a copy")
    assert "a different digest" in walk.type(publish, "--image", broken, status=(1,))
    assert walk.serves() == "2"

    walk.type(f"numlkit rollback {PLACE}")
    walk.type("numlkit down --name gpvm")
    walk.type("numlkit up gpvm.toml")
    assert walk.serves() == "1"
    walk.type("numlkit down --name gpvm")
    assert walk.left == [], "what the page shows and this does not do"
