"""Wrong usage of each command is told in a line, before anything is done."""

import shlex
import sys

import pytest

from deploy.environment.environment import plan_environment
from deploy.environment.lock import Flavour
from deploy.host.paths import cache_folder
from deploy.main import COMMANDS
from tests.unit.deploy.commands.running import run_here, run_process

ONE_OF_THEM = "both choose the server: leave one out"
SERVERS = "--servers names servers by their gRPC addresses, with TLS where they have it"
REQUESTS = "argument --repeat: '{}' is not a number from 1 to 10000"
METRICS = "argument --metrics: '{}' is not a port, or an IP address and a port"
NO_FOLDER = "no such folder: a b\n  try: mkdir -p 'a b'\n"
NO_PNG = "a PNG is drawn\n  try: --plot with a file called *.png\n"
TENANT = "is not NAME:RATE or NAME:RATE:HITS, with 1 to 1000000 hits"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("up --models ''", "--models: '' is not a model name"),
        ("up --models ../x", "--models: '../x' is not a model name"),
        ("up --name -rf", "argument --name: expected one argument"),
        ("up --checkpoint nugraph3", "--checkpoint 'nugraph3': expected MODEL=PATH"),
        ("up --checkpoint other=x", "deployment: checkpoint given for other, which is not among"),
        *(
            (f"{command} --checkpoint nugraph3=/dev/null", "checkpoint for nugraph3: /dev/null: ")
            for command in ("up", "prepare")
        ),
        ("up --listen 'not an address'", "--listen: 'not an address' is not an IP address"),
        ("up --tls-cert /none.pem", "--tls-key: missing: TLS needs a certificate and its private"),
        ("up --tls-cert /none.pem --tls-key /none.key", "certificate /none.pem: no such file"),
        ("up --instances abc", "--instances: 'abc' is not a whole number from 1 to 256"),
        ("up --instances 0", "--instances: 0 is not a whole number from 1 to 256"),
        ("up --cpus 0", "--cpus: 0 is not a whole number from 1 to 1024"),
        ("up --ports a,b,c", "--ports: 'a' is not a whole number from 1 to 65535"),
        (
            "up --ports 1,2",
            "--ports: '1,2' is not three numbers\n"
            "  try: --ports HTTP,GRPC,METRICS, as in 8000,8001,8002",
        ),
        ("status --timeout -1", "argument --timeout: '-1' is not a number of seconds above 0"),
        ("smoke --timeout x", "argument --timeout: 'x' is not a number of seconds above 0"),
        ("logs --tail -1", "argument --tail: '-1' is not a number of lines"),
        ("smoke --url localhost --name numl", f"--url and --name {ONE_OF_THEM}"),
        ("smoke --servers none --name numl", f"--servers and --name {ONE_OF_THEM}"),
        (
            "smoke --servers none --verify key.pub",
            "--verify checks a deployment's image, but --servers names a server",
        ),
        ("smoke --url ftp://h", "--url ftp://h: the scheme must be one of http://, https://, grpc"),
        ("smoke --url grpcs://h --ca /none.pem", "authority /none.pem: no such file"),
        (
            "smoke --url grpcs://h --cert /none.pem",
            "a client certificate and its private key go together",
        ),
        ("smoke --metrics 9464", "--metrics needs --watch"),
        ("smoke --watch --json", "--watch never ends, but --json prints one document"),
        *(
            (f"smoke --watch --metrics '{text}'", METRICS.format(text))
            for text in ("", "http", "0", "65536", "here:9464", "127.0.0.1:")
        ),
        *(
            (f"smoke --url grpcs://h --repeat {count}", REQUESTS.format(count))
            for count in ("0", "-1", "many")
        ),
        ("down --name numl --all", "--name and --all both choose what is stopped: leave one out"),
        (
            "logs --follow --json",
            "--follow never ends, but --json prints one document: leave one out",
        ),
        ("infer x.h5 --url h --name numl", "argument --name: not allowed with argument --url"),
        *(
            (f"{command} x.h5 --servers none {flags}", SERVERS)
            for command in ("infer", "evaluate")
            for flags in ("--ssl", "--protocol http")
        ),
        ("infer a.h5 --event 1,2", "argument --event: '1,2' is not RUN,SUBRUN,EVENT"),
        (
            f"infer a.h5 --event 1,2,{1 << 63}",
            "argument --event: '1,2,9223372036854775808': ids are of 64 bits",
        ),
        ("infer a.h5 --concurrency 0", "argument --concurrency: '0' is not a number from 1 to"),
        ("infer a.h5 --timeout -1", "argument --timeout: '-1' is not a number of seconds above 0"),
        ("infer a.h5 --json --quiet", "argument --quiet: not allowed with argument --json"),
        *((f"{command} --plot 'a b/m.png'", NO_FOLDER) for command in ("evaluate x.h5", "load")),
        ("infer x.h5 --out 'a b/r.h5'", f"{NO_FOLDER.rstrip()}, or another --out\n"),
        ("evaluate x.h5 --plot deploy/m.pdf", f"--plot deploy/m.pdf: {NO_PNG}"),
        ("evaluate x.h5 --plot ''", f"--plot .: {NO_PNG}"),
        ("load --plot load.doc", f"--plot load.doc: {NO_PNG}"),
        (
            "load --url http://h",
            "--url http://h: events are sent over gRPC\n  try: --url grpc[s]://HOST:PORT\n",
        ),
        ("load --tenant a:1 --tenant a:2", "--tenant a is given twice"),
        *(
            (f"load --tenant light:5:{hits}", f"argument --tenant: 'light:5:{hits}' {TENANT}")
            for hits in ("-3", "0", "1000001", "x")
        ),
        ("load --retries=-1", "argument --retries: '-1' is not a number from 0 to 1000"),
        ("load --retries=x", "argument --retries: 'x' is not a number from 0 to 1000"),
        ("load --pause=-0.5", "argument --pause: '-0.5' is not a number of seconds from 0 on"),
        ("load --pause=nan", "argument --pause: 'nan' is not a number of seconds from 0 on"),
        ("build", "--target is missing: env, image, sif or all"),
        ("build --target sif --triton 1.0", "--triton: '1.0' is neither a release"),
        ("build --target sif --triton ''", "--triton: '' is neither a release"),
        ("build --target sif --backends python,", "--backends 'python,': expected names"),
        ("build --target sif --backends python,../..", "--backends 'python,../..': expected"),
        ("build --target sif --backends onnxruntime", "--backends onnxruntime: without python"),
        ("build --target sif --base ngc --triton 26.07", "--base ngc is for Triton 24.10"),
        ("build --target sif --base-digest sha256:1", "--base-digest 'sha256:1': expected"),
        (f"build --target env --base-digest sha256:{'1' * 64}", "--base-digest needs"),
        (
            "build --target env --wheels /no",
            "--wheels /no: no such file or folder\n  try: correct it, or leave out --wheels",
        ),
        ("build --target sif --wire x", "--wire needs --target env or all"),
        ("build --target sif --environment ocr", "--environment is for --target env alone"),
    ],
)
def test_it_is_told_in_a_line_before_anything_is_done(line, said, tmp_path):
    done = run_here(shlex.split(line), tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {said}")
    assert [text[:6] for text in done.stderr.splitlines()[1:]] in ([], ["  try:"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_wrong_usage_is_one_line_and_where_help_is(command, tmp_path):
    wanted = dict.fromkeys(("publish", "published", "rollback", "check", "lock", "golden"), "x")
    wanted |= {"infer": "x.h5", "evaluate": "x.h5", "add": "x --like gcn --into x", "merge": "x x"}
    files = wanted.get(command, "").split()
    done = run_here([command, *files, "--colour"], tmp_path)
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert lines[0].startswith("error: unrecognized arguments")
    assert lines[1] == f"  try: numlkit {command} --help"


@pytest.mark.parametrize(
    ("script", "flags", "complaint"),
    [
        ("simulate_events", [], "the following arguments are required: OUT.h5"),
        ("simulate_events", ["x.h5", "--events", "0"], "--events must be at least 1"),
        ("simulate_events", ["x.h5", "--hits-range", "9", "8"], "--hits-range needs LOW < HIGH"),
        ("simulate_events", ["x.h5", "--seed", "-1"], "--seed must be from 0"),
        ("simulate_events", ["/no/x.h5"], "no such folder: /no"),
        ("train_demo", ["--events", "0"], "--events must be at least 1"),
        ("train_demo", ["--epochs", "0"], "--epochs must be at least 1"),
        ("import_checkpoint", ["x.ckpt"], "the following arguments are required: --model"),
    ],
)
def test_wrong_usage_of_a_script_is_one_line_and_where_help_is(script, flags, complaint, tmp_path):
    python, cache = sys.executable, {}
    if script in ("train_demo", "import_checkpoint"):
        flavour: Flavour = "cpu" if script == "train_demo" else "serving"
        environment = plan_environment(flavour)
        if not environment.python.exists():
            pytest.skip("needs the execution environment (numlkit prepare --full)")
        cache = {"XDG_CACHE_HOME": str(cache_folder().parent)}
    if script == "train_demo":
        python = str(environment.python)
        # Should it start, then not on the checkout's own files.
        flags = [*flags, "--out", str(tmp_path), "--events-out", str(tmp_path / "x.h5")]
    done = run_process([f"scripts/{script}.py", *flags], tmp_path, python, **cache)
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert lines[0].startswith(f"error: {complaint}")
    assert lines[1:] == [f"  try: python3 scripts/{script}.py --help"]
    assert done.stdout == ""
