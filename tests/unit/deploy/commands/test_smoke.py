"""What ``smoke`` shows of what it found; a real Triton is asked in tests/integration."""

import json
from datetime import datetime, timezone
from types import SimpleNamespace

import pytest

from deploy.client.service import Latency, ModelCheck, ServiceCheck
from deploy.commands import smoke
from deploy.deployment.deployment import Ports, Tls
from deploy.deployment.state import DeploymentFolder
from tests.certificates import Authority
from tests.unit.deploy.client.servers import Ready, grpc_server, http_server
from tests.unit.deploy.deployment.test_state import make_state

FROM_NOW_ON = (
    datetime(2020, 1, 1, tzinfo=timezone.utc), datetime(2099, 1, 1, tzinfo=timezone.utc)
)  # fmt: skip
URL = "grpcs://triton.example.org:443"
GOOD = ModelCheck("nugraph3", ready=True, latency=Latency(5, 0.0412, 0.0526))
WRONG = ModelCheck(
    "nugraph2", True, "model nugraph2 gives wrong answers: output x is empty", "look", wrong=True
)
AWAY = ServiceCheck(URL, error="the certificate expired", remedy="renew it")


def show(
    check: ServiceCheck,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *flags: str,
) -> tuple[int, str, str]:
    monkeypatch.setattr(smoke, "check_service", lambda *_, **__: check)
    status = smoke.main(["--url", URL, *flags])
    said = capsys.readouterr()
    return status, said.out, said.err


def test_a_good_service_is_a_table_with_its_times(monkeypatch, capsys):
    check = ServiceCheck(URL, health="serving", models=(GOOD,))
    assert show(check, monkeypatch, capsys) == (
        0,
        "smoke inference\n"
        "  server                          model     result  median  worst  requests\n"
        "  grpcs://triton.example.org:443  nugraph3  ok      41 ms   53 ms  5\n"
        "grpcs://triton.example.org:443: gRPC health: serving\n",
        "",
    )


def test_a_model_that_fails_stands_beside_one_that_does_not(monkeypatch, capsys):
    check = ServiceCheck(URL, models=(WRONG, GOOD))
    assert show(check, monkeypatch, capsys) == (
        1,
        "smoke inference\n"
        "  server                          model     result  median  worst  requests\n"
        "  grpcs://triton.example.org:443  nugraph2  FAILED\n"
        "  grpcs://triton.example.org:443  nugraph3  ok      41 ms   53 ms  5\n",
        "error: model nugraph2 gives wrong answers: output x is empty\n  try: look\n",
    )


def test_a_server_that_cannot_be_asked_is_one_line_and_its_remedy(monkeypatch, capsys):
    wanted = (1, "", "error: the certificate expired\n  try: renew it\n")
    assert show(AWAY, monkeypatch, capsys) == wanted
    assert show(AWAY, monkeypatch, capsys, "--quiet") == wanted


def test_the_json_answer_names_the_first_fault_and_holds_everything(monkeypatch, capsys):
    check = ServiceCheck(URL, ready=True, health="serving", models=(GOOD, WRONG))
    status, out, err = show(check, monkeypatch, capsys, "--json")
    assert (status, err) == (1, "")
    fault = {"error": WRONG.error, "remedy": "look"}
    found = {"url": URL, "ready": True, "error": None, "remedy": None}
    assert json.loads(out) == {
        "ok": False,
        **fault,
        "servers": [{**found, "health": "serving", "ok": False}],
        "results": [
            {
                **found,
                "model": "nugraph3",
                "latency": {"requests": 5, "median_s": 0.0412, "worst_s": 0.0526},
                "wrong": False,
                "ok": True,
            },
            {**found, **fault, "model": "nugraph2", "latency": None, "wrong": True, "ok": False},
        ],
    }


def test_another_server_at_a_deployment_s_port_is_not_taken_for_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    plan = SimpleNamespace(identity="numlkit-numl-1234")
    monkeypatch.setattr(DeploymentFolder, "plan", lambda _: plan)
    folder = DeploymentFolder("numl")
    (folder.repository / "nugraph3" / "1").mkdir(parents=True)
    with http_server(answers=Ready) as port:
        folder.write_state(make_state("numl", ports=Ports(http=port, grpc=1, metrics=2)))
        assert smoke.main(["--models", "nugraph3"]) == 1
        assert capsys.readouterr().err.splitlines()[:2] == [
            f"error: http://127.0.0.1:{port}: another server answers there",
            "  try: numlkit status with the same --name says why",
        ]
        plan.identity = "other"
        smoke.main(["--models", "nugraph3"])
        assert "another server" not in capsys.readouterr().err


def test_a_certificate_that_was_renewed_after_the_start_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    authority = Authority(tmp_path, "site")
    pair = authority.issue("localhost")
    with grpc_server(pair) as port:
        ports, tls = Ports(http=1, grpc=port, metrics=2), Tls(cert=pair.cert, key=pair.key)
        folder = DeploymentFolder("numl")
        folder.write_state(make_state("numl", ports=ports, tls=tls))
        (folder.repository / "nugraph3" / "1").mkdir(parents=True)
        smoke.main(["--models", "nugraph3"])
        assert "another certificate" not in capsys.readouterr().err
        authority.issue("localhost", valid=FROM_NOW_ON)
        for file in (pair.cert, pair.key):
            file.with_name(f"site.localhost.2099{file.suffix}").rename(file)
        assert smoke.main(["--models", "nugraph3"]) == 1
        assert capsys.readouterr().err.splitlines() == [
            f"error: deployment numl serves another certificate than {pair.cert} has now",
            "  try: if it was renewed, numlkit down and up take it; or --ca FILE for both",
        ]
        smoke.main(["--models", "nugraph3", "--ca", str(authority.file)])
        assert "another certificate" not in capsys.readouterr().err


def test_a_repository_that_is_not_there_is_named_with_what_to_do(capsys):
    assert smoke.main(["--url", "grpc://h", "--repository", "/none"]) == 1
    assert capsys.readouterr().err == (
        "error: model repository /none: no such folder\n"
        "  try: --repository with a folder that holds the models' folders\n"
    )


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9464", ("127.0.0.1", 9464)),
        ("0.0.0.0:9464", ("0.0.0.0", 9464)),
        ("[::1]:80", ("::1", 80)),
    ],
)
def test_metrics_are_exported_on_loopback_unless_an_address_is_given(text, address):
    assert smoke.parser().parse_args(["--watch", "--metrics", text]).metrics == address
