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


@pytest.fixture
def show(monkeypatch, capsys):
    """Returns status, output and errors where a check finds this."""

    def run(check: ServiceCheck, *flags: str) -> tuple[int, str, str]:
        monkeypatch.setattr(smoke, "check_service", lambda *_, **__: check)
        return smoke.main(["--url", URL, *flags]), *capsys.readouterr()

    return run


@pytest.fixture
def folder(home):
    """That of a deployment of nugraph3."""
    found = DeploymentFolder("numl")
    (found.repository / "nugraph3" / "1").mkdir(parents=True)
    return found


def test_a_good_service_is_a_table_with_its_times(show):
    check = ServiceCheck(URL, health="serving", models=(GOOD,))
    assert show(check) == (
        0,
        "smoke inference\n"
        "  server                          model     result  median  worst  requests\n"
        "  grpcs://triton.example.org:443  nugraph3  ok      41 ms   53 ms  5\n"
        "grpcs://triton.example.org:443: gRPC health: serving\n",
        "",
    )


def test_a_model_that_fails_stands_beside_one_that_does_not(show):
    assert show(ServiceCheck(URL, models=(WRONG, GOOD))) == (
        1,
        "smoke inference\n"
        "  server                          model     result  median  worst  requests\n"
        "  grpcs://triton.example.org:443  nugraph2  FAILED\n"
        "  grpcs://triton.example.org:443  nugraph3  ok      41 ms   53 ms  5\n",
        "error: model nugraph2 gives wrong answers: output x is empty\n  try: look\n",
    )


@pytest.mark.parametrize("flags", [[], ["--quiet"]])
def test_a_server_that_cannot_be_asked_is_one_line_and_its_remedy(show, flags):
    away = ServiceCheck(URL, error="the certificate expired", remedy="renew it")
    assert show(away, *flags) == (1, "", "error: the certificate expired\n  try: renew it\n")


def test_the_json_answer_names_the_first_fault_and_holds_everything(show):
    check = ServiceCheck(URL, ready=True, health="serving", models=(GOOD, WRONG))
    status, out, err = show(check, "--json")
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


def test_another_server_at_a_deployment_s_port_is_not_taken_for_it(folder, monkeypatch, capsys):
    plan = SimpleNamespace(identity="numlkit-numl-1234")
    monkeypatch.setattr(DeploymentFolder, "plan", lambda _: plan)
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


def test_a_certificate_that_was_renewed_after_the_start_is_told(folder, tmp_path, capsys):
    authority = Authority(tmp_path, "site")
    pair = authority.issue("localhost")
    with grpc_server(pair) as port:
        ports, tls = Ports(http=1, grpc=port, metrics=2), Tls(cert=pair.cert, key=pair.key)
        folder.write_state(make_state("numl", ports=ports, tls=tls))
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
