"""The commands that the README and the pages in docs/ show work.

Each command of a console block is understood by the command's own parser. Besides, it is run: here
if that takes seconds and no server, against a server in tests/integration/test_documentation.py, or
where PROVED_ELSEWHERE says; or NOT_PROVABLE_HERE says why not.
"""

from __future__ import annotations

import importlib
import re
import shlex
import socket
import subprocess
import sys
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from deploy.host.command_line import Parser
from deploy.host.paths import CHECKOUT, MODEL_REPOSITORY
from deploy.main import COMMANDS
from tests.pages import PAGES, README, Line, console, inline, numlkit

BY_A_SERVER = ("infer", "status", "logs", "smoke", "doctor", "down")  # tests/integration
SCRIPTS_WITH_PARSER = ("benchmark.py", "benchmark_build.py", "import_checkpoint.py")
PROVED_ELSEWHERE = {
    "scripts/quickstart": "the CI, in root file systems of its own making",
    "scripts/test": "the CI",
    "scripts/test --fast": "a part of the line before",
    "scripts/kit-environment": "scripts/test, which begins with it",
    "scripts/install_container_tools": "tests/containers/test_install_container_tools.py",
    "numlkit prepare --engine docker": "tests/conformance/test_documentation.py",
    "apptainer run numl-24.10-serving.sif": "tests/containers/sif/test_running.py",
    "docker run --read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges "
    "--publish 127.0.0.1:8000-8002:8000-8002 numlkit/numl:24.10-serving":
        "tests/containers/image/test_serving.py",
    "numlkit build --target sif": "tests/containers/sif/test_build.py",
    "numlkit build --target image": "tests/containers/image/test_build.py",
    "numlkit build --target image --flavour cpu": "tests/conformance/test_site_models.py",
    "numlkit build --target env": "tests/containers/test_packed_environment.py",
    "numlkit build --target env --wire model_store": "tests/containers/test_packed_environment.py",
    "numlkit up --engine docker --dry-run": "tests/conformance/test_documentation.py",
    "numlkit up --engine docker --cpus 8 --memory 16g": "tests/conformance/test_documentation.py",
    "numlkit up --engine apptainer --image /cvmfs/numl-24.10-serving.sif --name shift":
        "tests/conformance/test_documentation.py",
    "numlkit up --env packed --engine docker": "tests/conformance/test_packed_launch.py",
    "numlkit up --env packed --engine apptainer --image tritonserver.sif":
        "tests/conformance/test_packed_launch.py",
    "numlkit up --listen 0.0.0.0 --tls-cert server.pem --tls-key server.key":
        "tests/integration/tls/test_encrypted.py",
    "numlkit up --listen 0.0.0.0 --tls-cert server.pem --tls-key server.key --tls-ca clients.pem":
        "tests/integration/tls/test_encrypted.py",
    **dict.fromkeys(
        (
            "numlkit publish s3://https://s3.example.org:8333/models/prod --dry-run",
            "numlkit publish s3://https://s3.example.org:8333/models/prod",
            "numlkit published s3://https://s3.example.org:8333/models/prod "
            "--url grpcs://triton.example.org:443",
            "numlkit rollback s3://https://s3.example.org:8333/models/prod",
        ),
        "tests/integration/test_publishing.py",
    ),
    **dict.fromkeys(
        (
            "numlkit load",
            "numlkit load my_events.h5 --rates 20,50,100",
            "numlkit load --url grpcs://triton.example.org --ca ca.pem --tenant light:10:200 "
            "--plot load.png",
        ),
        "tests/integration/test_load.py",
    ),
    **dict.fromkeys(
        (
            "numlkit publish s3://https://s3.example.org:8333/models/prod --sign cosign.key "
            "--valid-for 30",
            "numlkit rollback s3://https://s3.example.org:8333/models/prod --sign cosign.key",
            "numlkit published s3://https://s3.example.org:8333/models/prod --verify cosign.pub",
        ),
        "tests/unit/deploy/publishing/test_signing.py",
    ),
    **dict.fromkeys(
        (
            "apt-get install g++ cmake ninja-build libgrpc++-dev libprotobuf-dev "
            "protobuf-compiler protobuf-compiler-grpc libhdf5-dev",
            "cmake -S clients/cpp -B build/cpp -G Ninja -DCMAKE_INSTALL_PREFIX=$HOME/numl",
            "cmake --build build/cpp && cmake --install build/cpp",
        ),
        "clients/cpp/check",
    ),
    **dict.fromkeys(
        (
            "numl-label --url grpcs://triton.example.org events.h5 --out labels.h5",
            "numl-label --url one:8001 --url two:8001 events.h5 | head -2",
            "numl-label --url grpcs://triton.example.org events.h5 --fallback-url 127.0.0.1:18001 "
            "--fallback 'numlkit up --name job --ports 18000,18001,18002' "
            "--fallback-stop 'numlkit down --name job'",
        ),
        "clients/cpp/tests",
    ),
    "numlkit publish /cvmfs/example.org/numl": "tests/containers/sif/test_publishing.py",
    "apptainer run /cvmfs/example.org/numl/current/numl.sif":
        "tests/containers/sif/test_publishing.py",
    "scripts/install_container_tools --only cosign": ".ci/run",
    **dict.fromkeys(
        (
            "(cd dist && sha256sum --check SHA256SUMS)",
            "cosign generate-key-pair",
            "cosign verify-blob --key cosign.pub --insecure-ignore-tlog=true "
            "--signature SHA256SUMS.sig SHA256SUMS",
            "apptainer verify --all --key cosign.pub numl-24.10-serving.sif",
        ),
        "tests/containers/supply/test_signatures.py",
    ),
    **dict.fromkeys(
        (
            "numlkit build --target image",
            "numlkit publish docker://registry.example.org/lab/numl --sign cosign.key",
            "numlkit publish oras://registry.example.org/lab/numl-sif --sign cosign.key",
            "numlkit published docker://registry.example.org/lab/numl:24.10-serving "
            "--verify cosign.pub",
            "numlkit up --engine docker --image registry.example.org/lab/numl:24.10-serving "
            "--verify cosign.pub",
            "numlkit up --engine apptainer --image numl-24.10-serving.sif --verify cosign.pub",
            "numlkit smoke --verify cosign.pub",
            "cosign verify --key cosign.pub --insecure-ignore-tlog=true "
            "registry.example.org/lab/numl:24.10-serving",
        ),
        "tests/containers/supply/test_registries.py",
    ),
    **dict.fromkeys(
        (
            "numlkit publish /cvmfs/example.org/numl --dry-run",
            "numlkit published /cvmfs/example.org/numl",
            "numlkit rollback /cvmfs/example.org/numl",
            "numlkit up gpvm.toml",
        ),
        "tests/conformance/test_administrators.py",
    ),
    **dict.fromkeys(
        (
            "haproxy -c -f /etc/haproxy/haproxy.cfg",
            'echo "set server grpc/one state drain" | socat - /run/haproxy/numl.sock',
            'echo "show stat grpc 4 -1" | socat - /run/haproxy/numl.sock',
            "numlkit up --name one",
            'echo "set server grpc/one state ready" | socat - /run/haproxy/numl.sock',
        ),
        "tests/integration/test_front_door.py",
    ),
    "numlkit smoke --watch 30 --url grpcs://triton.example.org:443 --ca site.pem --metrics 9464":
        "tests/integration/test_alerts.py",
    "openssl x509 -in dune.pem -noout -subject -nameopt RFC2253":
        "tests/integration/test_front_door_tenants.py",
}  # fmt: skip
PROVED_ELSEWHERE |= dict.fromkeys(
    ("numlkit add vision --like gat --into /site/models", "numlkit check /site/models"),
    "tests/unit/deploy/commands/test_add.py",
)
PROVED_ELSEWHERE["numlkit lock /site/envs/vision"] = "tests/unit/deploy/environment/test_locking.py"
PROVED_ELSEWHERE |= dict.fromkeys(
    (
        "numlkit golden vision",
        "python3 gallery/gat/train.py --graph cora.npz",
        "python gallery/gat/client.py --graph cora.npz --out gat.png",
    ),
    "tests/conformance/test_gallery.py",
)
NOT_PROVABLE_HERE = {
    "curl -s http://127.0.0.1:8002/metrics | grep nv_gpu_utilization": "no GPU",
    "numlkit up --gpu 0,1": "no GPU",
    "python3 scripts/train_demo.py": "takes minutes, and writes into the checkout",
    ". .venv/bin/activate": "the shell's",
    "python=$(numlkit prepare --quiet)/bin/python": "of a developer, who compiles",
    "(cd envs/numl && ../../.venv/bin/python setup.py --quiet build_py --build-lib .)": "the same",
    "PYTHONPATH=envs/numl $python -m numl_serving.check model_repository/nugraph3/1": "the same",
    'export CXX="g++ -g -fsanitize=address,undefined"': "the same",
    "systemctl --user enable --now numl.service": "no systemd",
    "loginctl enable-linger": "the same",
    "NUMLKIT_CROWD=whole .venv/bin/python -m pytest tests/integration/test_front_door_limits.py": (
        "two minutes; CI plays fewer"
    ),
    **dict.fromkeys(
        (
            "helm upgrade --install numl containers/chart -n physics "
            "-f containers/chart/cpu-values.yaml -f site.yaml --wait",
            "helm upgrade --install numl containers/chart -n physics "
            "-f containers/chart/cpu-values.yaml -f site.yaml --dry-run=server",
            "helm template numl containers/chart -f containers/chart/cpu-values.yaml -f site.yaml",
            "skopeo inspect --format '{{.Digest}}' docker://docker.io/envoyproxy/envoy:v1.40.0",
            "kubectl -n physics create configmap people --from-file=ca.crt=people.pem",
            "kubectl -n physics auth can-i --list",
            "kubectl -n physics get pods,events",
            "kubectl -n physics logs --all-containers --follow deployment/numl",
            "kubectl -n physics create secret tls numl-tls --cert=numl.pem --key=numl.key",
            "kubectl -n physics create secret generic bucket-reader "
            "--from-file=credentials=$HOME/.aws/credentials",
            "kubectl -n physics create configmap site-ca --from-file=ca.crt=site.pem",
            "kubectl -n physics create configmap release-key --from-file=cosign.pub",
            "kubectl -n physics rollout status deployment/numl",
            "kubectl -n physics exec deployment/numl -c triton -- /opt/numl/bin/health",
        ),
        "no cluster",
    ),
    "LD_PRELOAD=$(g++ -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0 "
    "PYTHONPATH=envs/numl $python -m numl_serving.check model_repository/nugraph3/1": "the same",
}
OF_OTHERS = (
    "--containall",
    "--force",
    "--grpc-restricted-protocol",
    "--metrics-config",
)  # of other programs: apptainer and tritonserver


@cache
def parser(command: str) -> Parser:
    found: Parser = importlib.import_module(f"deploy.commands.{command}").parser()
    return found


def command_of(words: list[str]) -> tuple[str, list[str]] | None:
    """Return the command of numlkit and its words, however it is spelled."""
    if words[0] == "numlkit" and words[1] in COMMANDS:
        return words[1], words[2:]
    path = Path(words[1]) if words[0] in ("python", "python3") and len(words) > 1 else Path()
    return (path.stem, words[2:]) if path.parent.name == "deploy" else None


def script_of(line: Line) -> tuple[str, list[str]] | None:
    words = line.words
    words = words[1:] if words[0] in ("python", "python3") else words
    return (words[0], words[1:]) if words[0].startswith("scripts/") else None


@pytest.mark.parametrize("line", [*console(), *inline()], ids=str)
def test_what_is_shown_is_understood(line: Line) -> None:
    found = command_of(line.words)
    if found is not None:
        command, words = found
        parser(command).parse_args(words)  # ends the test if it does not understand
    elif line.words[:2] != ["numlkit", "completion"] and (script := script_of(line)) is not None:
        assert (CHECKOUT / script[0]).is_file()


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS_WITH_PARSER)
def test_what_is_shown_of_a_script_is_understood(script: str) -> None:
    shown = [found for line in [*console(), *inline()] if (found := script_of(line)) is not None]
    lines = [shlex.join(words) for path, words in shown if path == f"scripts/{script}"]
    assert lines
    code = (
        "import runpy, shlex, sys; path, *lines = sys.argv[1:]; sys.argv[:] = [path]\n"
        "parser = runpy.run_path(path)['parser']()\n"
        "for line in lines: parser.parse_args(shlex.split(line))"
    )
    words = [sys.executable, "-c", code, f"scripts/{script}", *lines]
    done = subprocess.run(words, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_each_line_is_proved_or_named() -> None:
    named = {*PROVED_ELSEWHERE, *NOT_PROVABLE_HERE}
    dry, served = {*map(str, local_launches())}, {*map(str, numlkit(*BY_A_SERVER))}
    scripts = {str(line) for line in console() if re.match(r"python3 scripts/", line.text)}
    shown = {str(line) for line in console()}
    assert shown - dry - served - scripts - named == set()
    assert named - shown == set()
    for place in PROVED_ELSEWHERE.values():
        assert not place.startswith("tests/") or (CHECKOUT / place.partition(",")[0]).exists()


def free_ports() -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def local_launches() -> list[Line]:
    """Return the launches that this host can show without a container."""
    named = {*PROVED_ELSEWHERE, *NOT_PROVABLE_HERE}
    return [line for line in numlkit("up") if str(line) not in named]


@pytest.mark.parametrize("line", local_launches(), ids=str)
def test_a_launch_that_is_shown_can_be_planned(
    line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    site = tmp_path / "models"
    (site / "vision" / "1").mkdir(parents=True)
    (site / "vision" / "config.pbtxt").write_text('backend: "python"\nmax_batch_size: 0\n')
    (site / "vision" / "1" / "model.py").write_text("class TritonPythonModel: ...\n")
    given = {"/site/models": str(site), "deploy/sites/cpu-node.toml": None, "site.toml": None}
    words = line.words[2:]
    if any(Path(word.partition("=")[2] or word).suffix in (".ckpt", ".json") for word in words):
        folder = MODEL_REPOSITORY / "nugraph3" / "1"
        words = ["--models", "nugraph3", "--checkpoint", f"nugraph3={folder}"]
    if "nugraph3=mine" in words:
        words[words.index("nugraph3=mine")] = f"nugraph3={MODEL_REPOSITORY / 'nugraph3' / '1'}"
    words = [
        given.get(word, word) or str(CHECKOUT / "deploy/sites/cpu-node.toml") for word in words
    ]
    words += [] if "--engine" in words else ["--engine", "local"]
    words += ["--ports", ",".join(map(str, free_ports()))]  # a file may name some that are taken
    status = importlib.import_module("deploy.commands.up").main([*words, "--dry-run", "--quiet"])
    captured = capsys.readouterr()
    assert status == 0, captured.err
    assert "tritonserver" in captured.out


def test_every_command_is_shown_in_the_readme() -> None:
    text = README.read_text()
    assert [command for command in COMMANDS if f"`numlkit {command}" not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_flag_that_is_named_is_one_of_a_command(page: Path) -> None:
    helps = [parser(command).format_help() for command in COMMANDS]
    scripts = [path for path in (CHECKOUT / "scripts").iterdir() if path.is_file()]
    scripts += (CHECKOUT / "gallery").glob("*/*.py")
    scripts.append(CHECKOUT / "envs" / "numl" / "numl_sync" / "command.py")
    known = re.findall(r"--[a-z][a-z-]+", "".join([*helps, *(p.read_text() for p in scripts)]))
    text = re.sub(r"`python -m [^`]*`", "", page.read_text())
    named = set(re.findall(r"`(--[a-z][a-z-]+)", text))
    assert named - {*known, "--semantic-classes", "--event-classes", *OF_OTHERS} == set()
