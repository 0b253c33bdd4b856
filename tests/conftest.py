"""What several suites share; each that has servers has a fixture ``kit``.

Tests that want the fixture ``real_data`` run only where NUMLKIT_REAL_DATA names its folder. It
holds weights and an event of an experiment, which are not this repository's to give away.
"""

import os
import signal
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

FOLDER = os.environ.get("NUMLKIT_REAL_DATA")
# They take longest and go first, in this order: at the end no process waits long for another.
LONGEST = (
    *("integration/test_sync.py", "conformance/test_hosts.py", "integration/test_races.py"),
    *("integration/test_publishing_triton.py", "conformance/test_site_models.py"),
    *("integration/test_benchmark.py", "integration/test_triton_releases.py"),
    *("integration/test_fuzzing.py", "integration/failed_starts/test_environments.py"),
    *("integration/test_healing.py", "integration/test_front_door.py"),
    *("containers/supply/test_registries.py", "containers/chart/test_drain.py"),
    "containers/test_packed_environment.py",
)

# The library that makes Grafana's dashboard has no release for Python 3.10.
if sys.version_info < (3, 11):
    collect_ignore = [
        "integration/test_alerts.py",
        "unit/deploy/monitoring/test_monitoring_files.py",
    ]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--triton", help="serve with this Triton, named as for numlkit up")


# A shell's background job is started with Ctrl-C ignored, one of nohup with SIGHUP ignored, and so
# would be all that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session")
def real_data():
    """The folder of the real data."""
    assert FOLDER is not None
    folder = Path(FOLDER).resolve()
    assert folder.is_dir(), f"NUMLKIT_REAL_DATA: no folder {folder}"
    return folder


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder whose ``cache`` and ``state`` are the user's for this test."""
    for use in ("cache", "state"):
        monkeypatch.setenv(f"XDG_{use.upper()}_HOME", str(tmp_path / use))
    return tmp_path


@pytest.fixture
def demo(kit):
    """A deployment of all models with the demo weights, for tests that leave it healthy."""
    return kit.demo  # kept there: a session may have the kits of two suites


@pytest.fixture
def single(kit):
    """A small deployment of its own, for tests that do harm to it."""
    answer = kit.up("single", "--models", "nugraph3", "--instances", "1")
    yield answer
    kit.end("single")


def _turn(item: pytest.Item) -> int:
    path = item.path.as_posix()
    return next((n for n, name in enumerate(LONGEST) if path.endswith(name)), len(LONGEST))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=_turn)
    wanting = [item for item in items if "real_data" in getattr(item, "fixturenames", ())]
    if FOLDER is None and wanting:
        items[:] = [item for item in items if item not in wanting]
        config.hook.pytest_deselected(items=wanting)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, object]:
    """Show with a failure what the supervisors of its servers saw: one may have died."""
    report = yield
    kit = getattr(item, "funcargs", {}).get("kit")
    if report.failed and kit is not None:
        for name in dict.fromkeys(kit.names):
            log = kit.folder(name) / "supervisor.log"
            if log.exists():
                said = log.read_text(errors="replace")[-3000:]
                report.sections.append((f"supervisor of {name}", said))
    return report


def pytest_report_header() -> str:
    if FOLDER is None:
        return "real data: none, tests that want it are deselected (set NUMLKIT_REAL_DATA)"
    return f"real data: {FOLDER}"
