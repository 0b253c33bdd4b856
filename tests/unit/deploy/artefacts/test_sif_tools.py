"""Which tools make a .sif: found, judged, and what to install where one is missing."""

from pathlib import Path

import pytest

from deploy.artefacts.tools import check_folder, find_tools, install_hint
from deploy.host.errors import BuildError
from tests.programs import write_program


def _program(folder: Path, name: str, version: str, then: str = "exit 0") -> None:
    answer = f'case "$1" in -*version) echo "{version}"; exit;; esac'
    write_program(folder / name, f"{answer}\n{then}")


@pytest.fixture
def on_path(tmp_path, monkeypatch):
    """A folder that is all there is on PATH, with usable stand-ins for both programs."""
    monkeypatch.setenv("PATH", str(tmp_path))
    _program(tmp_path, "apptainer", "apptainer version 1.4.5-1.el9")
    _program(tmp_path, "mksquashfs", "mksquashfs version 4.5.1 (2022/03/17)")
    return tmp_path


@pytest.mark.parametrize("name", ["apptainer", "mksquashfs"])
def test_what_is_missing_is_named_with_all_that_is_needed(on_path, name):
    (on_path / name).unlink()
    with pytest.raises(BuildError) as caught:
        find_tools("zstd")
    assert caught.value.cause == (
        f"{name} is not installed; a .sif needs Apptainer and squashfs-tools"
    )
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("name", "version", "cause"),
    [
        ("apptainer", "apptainer version 1.1.9", r"^apptainer 1\.1\.9 is too old: 1\.2 or newer"),
        ("mksquashfs", "mksquashfs version 4.3 (2014)", r"^mksquashfs 4\.3 is too old: 4\.4"),
        ("mksquashfs", "mksquashfs version 4.7.4 (2025)", r"^mksquashfs 4\.7\.4 is known to"),
        ("mksquashfs", "mksquashfs version 4.7 (2025)", r"^mksquashfs 4\.7 is known to"),
    ],
)
def test_a_version_that_does_not_do_is_refused(on_path, name, version, cause):
    _program(on_path, name, version)
    with pytest.raises(BuildError, match=cause):
        find_tools("zstd")


def test_a_program_that_does_not_work_is_not_called_old(on_path):
    said = "Couldn't determine user account information: user: unknown userid 1000"
    program = write_program(on_path / "apptainer", f'echo "FATAL:   {said}" >&2; exit 255')
    with pytest.raises(BuildError) as caught:
        find_tools("zstd")
    assert caught.value.cause == f"{program} does not say its version: {said}"
    assert caught.value.remedy == f"{program} --version must work for this user"


@pytest.mark.parametrize("version", ["4.4-git.1", "4.6.1", "4.7.5", "5.0"])
def test_what_is_there_is_found_with_its_version_also_around_the_broken_ones(on_path, version):
    _program(on_path, "mksquashfs", f"mksquashfs version {version} (2026/01/01)")
    tools = find_tools("zstd")
    assert str(tools.apptainer) == "apptainer 1.4.5"
    assert str(tools.mksquashfs) == f"mksquashfs {version.partition('-')[0]}"
    assert tools.mksquashfs.path == on_path / "mksquashfs"


def test_a_compressor_that_was_not_built_in_is_found_by_trial(on_path):
    _program(
        on_path,
        "mksquashfs",
        "mksquashfs version 4.5.1",
        'case "$*" in *zstd*) echo Compressor is not supported! >&2; exit 1;; esac',
    )
    with pytest.raises(BuildError) as caught:
        find_tools("zstd")
    assert caught.value.cause == "mksquashfs 4.5.1 cannot compress with zstd"
    assert caught.value.remedy == "use --compressor gzip"
    find_tools("gzip")


@pytest.mark.parametrize("name", ["two words", "a#1", "$HOME", "`id`", "é", "a\\b", "a[1]*!"])
def test_apptainer_builds_in_folders_of_most_names(name):
    check_folder(Path("/out") / name)


@pytest.mark.parametrize("name", ["it's", 'a"', "a\nb", "a&b", "a;b", "(1)", "a|b", "a<b", "a #1"])
def test_folders_whose_names_apptainer_takes_for_the_shell_s_are_refused(name):
    with pytest.raises(BuildError, match="Apptainer cannot build in ") as caught:
        check_folder(Path("/out") / name)
    assert "\n" not in caught.value.cause
    assert caught.value.remedy == "choose another --out"


@pytest.mark.parametrize(("release", "hint"), [
    ({"ID": "debian"}, "sudo scripts/install_container_tools"),
    ({"ID": "ubuntu", "ID_LIKE": "debian"}, "sudo scripts/install_container_tools"),
    ({"ID": "almalinux", "ID_LIKE": "rhel centos fedora", "VERSION_ID": "9.4"},
     "sudo dnf install -y epel-release && sudo dnf install -y apptainer squashfs-tools"),
    ({"ID": "rhel", "ID_LIKE": "fedora", "VERSION_ID": "9.4"}, "sudo dnf install -y "
     "https://dl.fedoraproject.org/pub/epel/epel-release-latest-9.noarch.rpm"
     " && sudo dnf install -y apptainer squashfs-tools"),
    ({"ID": "fedora"}, "sudo dnf install -y apptainer squashfs-tools"),
    ({"ID": "arch"}, "see https://apptainer.org/docs/admin/main/installation.html"),
    ({}, "see https://apptainer.org/docs/admin/main/installation.html"),
])  # fmt: skip
def test_each_distribution_has_its_command(release, hint):
    assert install_hint(release) == hint
