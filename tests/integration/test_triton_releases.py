"""Other releases of Triton without a container, taken from an image like NVIDIA's."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from deploy.engines.server import living_stubs
from deploy.environment.interpreter import find_interpreter
from tests.kit import Kit, until
from tests.releases import SERVERS, image_layers, in_cache, lay_out, write_oci


@pytest.mark.parametrize(("release", "python"), [("24.03", "3.10"), ("24.09", "3.12")])
def test_a_release_from_an_image_serves_the_right_values_and_is_healed(
    kit: Kit, tmp_path: Path, release: str, python: str
) -> None:
    if find_interpreter([python]) is None:
        pytest.skip(f"its stub is for Python {python}, which is not here")
    image = write_oci(tmp_path / "image", image_layers(lay_out(release, python, tmp_path)), release)
    with in_cache(str(image)):
        serve(kit, str(image), release, python)


def serve(kit, image, release, python):
    name = f"triton-{release}"
    answer = kit.up(name, "--triton", image, "--models", "nugraph3", "--instances", "1")
    server = psutil.Process(answer["server"]["pid"])
    metadata = kit.json("status", "--name", name)
    assert metadata["ok"], metadata
    assert (
        f"server_version                   | {SERVERS[release]}" in Path(answer["log"]).read_text()
    )
    stub, *_ = living_stubs(server)
    assert Path(f"/proc/{stub.process.pid}/maps").read_text().count(f"libpython{python}") > 0
    os.kill(stub.process.pid, signal.SIGKILL)
    until(lambda: int(kit.noted(name)["heals"]) > 0, "healing")
    assert kit.json("status", "--name", name)["ok"]
    assert kit.down(name)["status"] == 0
    assert kit.leftovers(name) == []
