"""numlkit logs: the log of a deployment that comes, goes and comes again."""

import subprocess
from pathlib import Path

import pytest

from deploy.commands import logs
from deploy.deployment.state import DeploymentFolder
from deploy.engines.farm import Farm
from deploy.host.batch.settings import BatchSettings


@pytest.mark.parametrize(
    ("another", "last"), [(False, b"and sto"), (True, b"and stopped")], ids=["emptied", "moved"]
)
def test_follow_shows_the_log_of_a_server_that_was_started_again(
    home, monkeypatch, capsysbinary, another, last
):
    log = DeploymentFolder("numl").log
    log.parent.mkdir(parents=True)
    log.write_bytes(b"the first server\nis starting\nand sto")

    def say(text):
        with log.open("ab") as stream:
            stream.write(text)

    def start_again():
        if another:
            say(b"pped\n")
            log.rename(log.with_name("earlier"))
        log.write_bytes(b"the second\n")

    # What happens while it waits for more; then somebody presses Ctrl-C.
    steps = iter([start_again, lambda: say(b"is ready\n"), log.unlink])

    def wait(_seconds):
        step = next(steps, None)
        if step is None:
            raise KeyboardInterrupt
        step()

    monkeypatch.setattr(logs.time, "sleep", wait)
    assert logs.main(["--follow", "--tail", "1"]) == 0
    said = capsysbinary.readouterr().out.splitlines()
    assert said == [b"is starting", last, b"the second", b"is ready"]


def test_servers_that_are_batch_jobs_have_their_logs_beside_the_jobs(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "my state"))
    settings = BatchSettings(engine="slurm")
    farm = Farm(
        name="many", job="numl-many-1", settings=settings, servers=1, words=(), place=Path(),
        models=("nugraph3",),
    )  # fmt: skip
    farm.write()
    log = farm.to_submit(1, "up-1").folder / "0.log"
    log.parent.mkdir(parents=True)
    log.write_text("a server\n")
    assert logs.main(["--name", "many"]) == 1
    error, remedy = capsys.readouterr().err.splitlines()
    assert error == "error: many runs as batch jobs, each of which has a log of its own"
    command = ["sh", "-c", remedy.removeprefix("  try: ")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"{log}\n"
