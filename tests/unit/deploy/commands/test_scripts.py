"""What holds for all scripts of the shell."""

import os
import subprocess

import pytest

from deploy.host.paths import CHECKOUT

_GOES = 'cd "$(dirname "${BASH_SOURCE[0]}")/'
SCRIPTS = sorted(
    path.relative_to(CHECKOUT)
    for pattern in ("scripts/*", "clients/cpp/check", "tests/hosts/*")
    for path in CHECKOUT.glob(pattern)
    if path.is_file() and os.access(path, os.X_OK) and _GOES in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_a_script_goes_to_its_checkout_wherever_cdpath_leads(script, tmp_path):
    here, elsewhere = tmp_path / "clone", tmp_path / "elsewhere"
    for folder in (here, elsewhere):
        (folder / script).parent.mkdir(parents=True)
    lines = (CHECKOUT / script).read_text(encoding="utf-8").splitlines()
    [goes] = (line for line in lines if _GOES in line)
    (here / script).write_text(f"{goes}\npwd\n", encoding="utf-8")
    variables = {**os.environ, "CDPATH": str(elsewhere)}
    done = subprocess.run(
        ["bash", script], cwd=here, env=variables, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{here}\n"
