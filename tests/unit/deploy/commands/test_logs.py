"""numlkit logs: the log of a deployment that comes, goes and comes again."""

import pytest

from deploy.commands import logs
from deploy.deployment.state import DeploymentFolder


@pytest.mark.parametrize(
    ("another", "last"), [(False, b"and sto"), (True, b"and stopped")], ids=["emptied", "moved"]
)
def test_follow_shows_the_log_of_a_server_that_was_started_again(
    tmp_path, monkeypatch, capsysbinary, another, last
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
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
