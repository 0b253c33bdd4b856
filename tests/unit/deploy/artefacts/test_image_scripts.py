"""The scripts of an image, with everything that they start played."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from deploy.host.paths import CHECKOUT
from tests.programs import write_program

PLAYED = {
    "tritonserver/bin/tritonserver": """\
#!/bin/bash
for word; do
  case $word in *shm-region-prefix-name=*) region=/dev/shm/${word##*=}played ;; esac
done
touch "$region"
echo "$region" >started
exec sleep 100
""",
    # Of numl_serving.check nothing; of the ports three numbers.
    "numl/env/bin/python": "#!/bin/bash\n[[ $* != *socket* ]] || echo 1 2 3\n",
    "numl/bin/health": "echo healthy",
}


@pytest.fixture
def image(tmp_path):
    """Return a folder that is /opt to its scripts, and whose server shares memory."""
    opt = tmp_path / "opt"
    for name, text in PLAYED.items():
        write_program(opt / name, text.replace("started", str(tmp_path / "started")))
    for name in ("serve", "check"):
        text = (CHECKOUT / "containers" / name).read_text(encoding="utf-8")
        write_program(opt / "numl" / "bin" / name, text.replace("/opt/", f"{opt}/"))
    (opt / "numl" / "bin" / "flags").write_text("--exit-timeout-secs=1\n")
    (opt / "numl" / "models" / "cpu" / "of-the-site" / "1").mkdir(parents=True)
    return opt


def start(image: Path, name: str, *words: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [image / "numl" / "bin" / name, *words],
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def shared(image: Path) -> Path:
    """Return the shared memory of the server, once it is there."""
    file, deadline = image.parent / "started", time.monotonic() + 20
    while not (file.exists() and file.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return Path(file.read_text().strip())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_server_whose_terminal_closes_or_that_is_stopped_leaves_no_shared_memory(image, number):
    with start(image, "serve") as server:
        region = shared(image)
        try:
            os.killpg(server.pid, number)
            server.wait(20)
            assert not region.exists()
        finally:
            region.unlink(missing_ok=True)


def test_a_server_has_the_time_to_finish_that_the_caller_gives_it(image, tmp_path):
    """As the chart does: more than every server of the kit has."""
    finishing = f"""\
#!/bin/bash
trap 'sleep 5; echo finished; exit' TERM
mktemp --directory /tmp/python_env_XXXXXX >/dev/null
sleep 1
echo /dev/null >{tmp_path}/started
while sleep 0.1; do :; done
"""
    write_program(image / "tritonserver" / "bin" / "tritonserver", finishing)
    with start(image, "serve", "--cpu", "--exit-timeout-secs=30") as server:
        shared(image)
        server.terminate()
        assert server.communicate(timeout=20)[0] == "finished\n"
    assert server.returncode == 0


def test_a_check_needs_no_temporary_folder_of_the_caller(image):
    with start(image, "check", TMPDIR="/nonexistent") as check:
        assert check.communicate(timeout=20)[0] == "healthy\n"
    assert check.returncode == 0


def test_a_check_that_is_stopped_leaves_no_server(image):
    write_program(image / "numl" / "bin" / "health", "exec sleep 100")
    with start(image, "check") as check:
        region = shared(image)
        try:
            check.terminate()
            check.wait(20)
            assert not region.exists()
        finally:
            os.killpg(check.pid, signal.SIGKILL)
            region.unlink(missing_ok=True)


@pytest.mark.parametrize("version", ["1", "2"])
def test_models_that_a_check_can_load_itself_need_no_server(image, version):
    """Of another version than the kit's, a model is the site's."""
    (image / "numl" / "models" / "cpu" / "of-the-site" / "1").rmdir()
    card = image / "numl" / "models" / "cpu" / "of-the-site" / version / "model.json"
    card.parent.mkdir()
    card.touch()
    with start(image, "check") as check:
        said = check.communicate(timeout=20)[0]
    assert said == ("" if version == "1" else "healthy\n")
    assert check.returncode == 0


def test_a_folder_of_models_is_named_from_where_the_caller_is(image, tmp_path):
    server = image / "tritonserver" / "bin" / "tritonserver"
    write_program(server, 'printf "%s\\n" "$@"')
    done = subprocess.run(
        [image / "numl" / "bin" / "serve"], cwd=tmp_path, env=os.environ | {"NUML_MODELS": "mine"},
        stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    assert f"--model-repository={tmp_path / 'mine'}" in done.stdout.splitlines()
