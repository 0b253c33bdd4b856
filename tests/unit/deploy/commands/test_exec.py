"""The end of a command beside a server; a fake stands for the server."""

from types import SimpleNamespace

import pytest

from deploy.commands import exec as module
from deploy.host.errors import BuildError


@pytest.mark.parametrize("error", [BuildError("no Docker engine", "start it"), OSError(28, "full")])
def test_the_exit_status_is_the_commands_also_if_the_server_cannot_be_stopped(
    home, monkeypatch, capsys, error
):
    def stop(*_: object) -> None:
        raise error

    state = SimpleNamespace(url=lambda scheme: f"{scheme}://127.0.0.1:1", log=None)
    monkeypatch.setattr(module, "fetch_triton", lambda *_: None)
    monkeypatch.setattr(module, "check_given", lambda _: [])
    monkeypatch.setattr(module, "chosen", lambda *_: (SimpleNamespace(stop=stop), None))
    monkeypatch.setattr(module, "launch", lambda *_, **__: state)
    assert module.main(["--", "sh", "-c", "exit 7"]) == 7
    assert capsys.readouterr().err.splitlines()[0].startswith("error: ")
