"""The ways to a base.

The registries of the real bases cannot be reached from where the tests run everywhere, so an
engine that answers for them is played here; a registry on loopback is asked in tests/containers.
"""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import APIError, ImageNotFound

from deploy.artefacts.image import (
    BaseImage,
    bootstrap_command,
    debian_name,
    debian_tar,
    ensure_base,
)
from deploy.artefacts.sif import SifBuilder
from deploy.artefacts.tools import SifTools, Tool
from deploy.host.console import Say
from deploy.host.errors import BuildError
from deploy.host.paths import cache_folder
from tests.environments import ignore
from tests.programs import write_program

DEBIAN = "docker.io/library/debian:bookworm-slim"
NVIDIA = "nvcr.io/nvidia/tritonserver:24.10-py3"
DIGEST = "sha256:" + "d" * 64
UNREACHABLE = 'Get "https://registry-1.docker.io/v2/": no such host'


class Engine:
    """Holds some images, and a registry that holds others or does not answer."""

    def __init__(self, *there: str, registry: tuple[str, ...] | None = None) -> None:
        self.there = set(there)
        self.registry = registry
        self.cut_off = False
        self.others: list[str] = []  # digests that its images also have
        self.pulled: list[str] = []
        self.imported: list[str] = []
        self.api = SimpleNamespace(
            pull=self._pull, import_image_from_file=self._import_image_from_file
        )
        self.images = SimpleNamespace(get=self._get)

    def _pull(
        self, repository: str, tag: str, stream: bool, decode: bool
    ) -> Iterator[dict[str, str]]:
        assert stream
        assert decode
        name = f"{repository}{'@' if tag.startswith('sha256:') else ':'}{tag}"
        self.pulled.append(name)
        if self.registry is None or name not in self.registry:
            raise APIError("500 Server Error", explanation=UNREACHABLE)
        return self._layers(name)

    def _layers(self, name: str) -> Iterator[dict[str, str]]:
        yield {"status": f"Pulling from {name}", "id": "latest"}
        if self.cut_off:
            yield {"error": "unexpected EOF", "errorDetail": "..."}
            return
        yield {"status": "Pull complete", "id": "5a37"}
        self.there.add(name)

    def _import_image_from_file(
        self, filename: str, repository: str, tag: str, changes: list[str]
    ) -> None:
        assert Path(filename).is_file()
        assert changes[0].startswith("ENV PATH=")
        self.imported.append(f"{repository}:{tag}")
        self.there.add(f"{repository}:{tag}")

    def _get(self, name: str) -> Any:
        if name not in self.there:
            raise ImageNotFound(name)
        digests = [f"elsewhere/debian@sha256:{'e' * 64}"]
        if self.registry:
            digests += [f"debian@{DIGEST}", f"nvcr.io/nvidia/tritonserver@{DIGEST}"]
        digests += self.others
        return SimpleNamespace(id="sha256:image", attrs={"RepoDigests": digests})


def ensured(
    engine: Engine, name: str = NVIDIA, digest: str | None = None, say: Say = ignore
) -> BaseImage:
    return ensure_base(engine, name=name, digest=digest, say=say)


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Writes an mmdebstrap that takes no minute, and does what each test says."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return partial(write_program, tmp_path / "bin" / "mmdebstrap")


def test_the_registry_s_newest_is_taken_and_its_pull_is_told():
    told: list[str] = []
    engine = Engine(DEBIAN, registry=(DEBIAN,))
    base = ensured(engine, DEBIAN, say=told.append)
    assert engine.pulled == [DEBIAN]
    assert (base.reference, base.name, base.digest) == (DEBIAN, DEBIAN, DIGEST)
    assert told[-1] == "pulling docker.io/library/debian: 5a37 pull complete"


def test_a_pull_that_is_cut_off_is_no_pull():
    engine = Engine(registry=(NVIDIA,))
    engine.cut_off = True
    with pytest.raises(BuildError, match=r"cannot pull .*: unexpected EOF"):
        ensured(engine)


@pytest.mark.parametrize("others", ["", "a", "f"], ids=["alone", "before another", "after another"])
def test_a_digest_names_the_base_and_is_recorded(others):
    pinned = f"nvcr.io/nvidia/tritonserver@{DIGEST}"
    engine = Engine(registry=(pinned,))
    engine.others = [f"nvcr.io/nvidia/tritonserver@sha256:{letter * 64}" for letter in others]
    base = ensured(engine, digest=DIGEST)
    assert (base.reference, base.name, base.digest) == (pinned, NVIDIA, DIGEST)


def test_a_base_with_several_digests_is_recorded_by_the_same_in_whatever_order_they_are():
    digests = [f"nvcr.io/nvidia/tritonserver@sha256:{letter * 64}" for letter in "ab"]
    recorded = []
    for others in (digests, digests[::-1]):
        engine = Engine(NVIDIA)
        engine.others = others
        recorded.append(ensured(engine).digest)
    assert recorded == ["sha256:" + "a" * 64] * 2


def test_without_a_registry_the_one_in_the_engine_serves():
    base = ensured(Engine(NVIDIA))
    assert (base.reference, base.digest) == (NVIDIA, "sha256:image")


@pytest.mark.parametrize(("name", "digest"), [(NVIDIA, None), (NVIDIA, DIGEST), (DEBIAN, DIGEST)])
def test_what_cannot_be_made_here_is_refused_in_a_line(name, digest):
    with pytest.raises(BuildError, match=r"cannot pull .*no such host$") as caught:
        ensured(Engine(), name, digest)
    assert "docker load" in caught.value.remedy


def test_an_old_debian_is_named_with_its_age(program):
    program('for last; do :; done\necho >>"$last"')
    told: list[str] = []
    tar = debian_tar("bookworm", told.append)
    assert told == ["making a minimal Debian with mmdebstrap"]
    os.utime(tar, (1_600_000_000, 1_600_000_000))
    told.clear()
    assert debian_tar("bookworm", told.append) == tar
    assert told == [f"using the Debian made here on 2020-09-13 (rm {tar} for a new one)"]


def test_a_debian_made_here_is_called_by_its_content_on_every_machine(
    tmp_path, program, monkeypatch
):
    program('for last; do :; done\nprintf abc >"$last"')
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    name = f"numlkit/debian:bookworm-{digest[:12]}"
    for cache in ("one", "other"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / cache))
        engine = Engine()
        base = ensured(engine, DEBIAN)
        assert (base.reference, base.name, base.digest) == (name, name, f"sha256:{digest}")
        assert engine.there == {name}
    assert (ensured(engine, DEBIAN), engine.imported) == (base, [name])


def test_a_missing_mmdebstrap_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match="which could make one, is not installed") as caught:
        debian_tar("bookworm", ignore)
    assert caught.value.remedy == "sudo apt-get install mmdebstrap (Debian, Ubuntu)"


def test_a_glibc_that_no_debian_has_is_named():
    with pytest.raises(BuildError, match=r"needs glibc 2\.55; the newest base has 2\.41"):
        debian_name((2, 55))


def test_a_failed_mmdebstrap_gives_its_reason_and_leaves_nothing(program):
    program('echo "I: begins" >&2; echo "E: no mirror" >&2; exit 25')
    with pytest.raises(BuildError, match="cannot make a minimal Debian: no mirror"):
        debian_tar("bookworm", ignore)
    assert [path.suffix for path in (cache_folder() / "bases").iterdir()] == [".lock"]


@pytest.mark.parametrize(
    "said",
    [
        "E: unable to pick chroot mode automatically (use --mode for manual selection)",
        "W: /etc/subuid is empty\nE: failed to parse /etc/subuid and /etc/subgid",
    ],
)
def test_a_user_without_subordinate_ids_is_told_how_to_get_them(program, said):
    program(f"echo '{said}' >&2; exit 1")
    with pytest.raises(BuildError, match=r"no subordinate user ids$") as caught:
        debian_tar("bookworm", ignore)
    assert caught.value.remedy.startswith("sudo usermod --add-subuids ")


def test_the_minimal_debian_has_no_package_manager_s_interpreter_and_no_name_of_this_host():
    command = bootstrap_command("bookworm")
    packages = next(w for w in command if w.startswith("--include=")).partition("=")[2].split(",")
    assert {"bash", "coreutils", "libstdc++6"} <= set(packages)
    assert not {"apt", "perl", "perl-base", "python3"} & set(packages)
    assert any("etc/hostname" in word and "etc/resolv.conf" in word for word in command)
    assert command[-2:] == ("bookworm", "-")


@pytest.fixture
def asked(tmp_path) -> Path:
    """Where a played Apptainer, beside it, writes what it is to build from."""
    until = 'until [ "$1" = --build-arg-file ]; do shift; done; cat "$2" >asked'
    write_program(tmp_path / "apptainer", f"{until}; mkdir -p sandbox")
    return tmp_path / "asked"


def filled(folder: Path, base: str, digest: str | None = None) -> BaseImage:
    program = Tool("played", folder / "apptainer", (1, 4, 5))
    builder = SifBuilder(SifTools(program, program, "zstd"), 0, ignore)
    found, agent = builder._fill(folder / "sandbox", folder, base, digest)
    assert agent == "docker"
    return found


def test_apptainer_builds_from_the_digest_that_a_tag_has_and_it_is_recorded(serve, tmp_path, asked):
    registry = serve()
    digest = registry.document.digest
    found = filled(tmp_path, f"{registry.name}:t")
    assert found.labels["org.opencontainers.image.base.digest"] == digest
    assert str(found) == f"{registry.name}:t@{digest}"
    assert asked.read_text() == f"bootstrap=docker\nfrom={registry.name}@{digest}\n"
    assert filled(tmp_path, f"{registry.name}:t", DIGEST).digest == DIGEST
    assert len(registry.asked) == 1


@pytest.mark.parametrize("fault", [{"document": None}, {"refuses": 1}])
def test_apptainer_builds_from_a_tag_whose_digest_the_registry_does_not_say(
    serve, tmp_path, asked, fault
):
    registry = serve()
    vars(registry).update(fault)
    found = filled(tmp_path, f"{registry.name}:t")
    assert found.digest == ""
    assert asked.read_text() == f"bootstrap=docker\nfrom={registry.name}:t\n"
