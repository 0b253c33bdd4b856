"""The folder that names servers; ``tests/registries.py`` has its rules as files."""

import os
import time

import pytest

from deploy.client.registry import Registry
from deploy.host.errors import ClientError
from tests import registries


def test_servers_are_named_by_what_is_an_entry_and_by_nothing_else(tmp_path):
    registries.make(tmp_path / "servers")
    assert Registry(tmp_path / "servers").urls() == registries.SERVERS


@pytest.mark.parametrize("kind", ["no folder", "an empty folder", "a file"])
def test_a_folder_that_names_none_is_told(tmp_path, kind):
    folder = tmp_path / "servers"
    if kind == "an empty folder":
        folder.mkdir()
    if kind == "a file":
        folder.touch()
    with pytest.raises(ClientError) as caught:
        Registry(folder).urls()
    why, shown = ("", "why") if kind == "an empty folder" else (": no such folder", "its folder")
    assert (caught.value.cause, caught.value.remedy) == (
        f"{folder} names no server{why}",
        f"numlkit status with the --name of their numlkit up shows {shown}",
    )


def test_a_server_that_has_died_is_not_named(tmp_path):
    registry = Registry(tmp_path / "servers")
    dead, alive = registry.enter("grpc://dead:1"), registry.enter("grpc://alive:1")
    long_ago = time.time() - 600
    for entry in (dead, alive):
        os.utime(registry.folder / f"{entry.name}.json", (long_ago, long_ago))
    registry.stay(alive)
    assert registry.urls() == ("grpc://alive:1",)
