from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deploy.deployment.deployment import Batch, Deployment, Tls, load_deployment
from deploy.deployment.limits import FEWEST_BOUNDED
from deploy.engines.resolved import Resolved
from deploy.host.errors import DeploymentError
from deploy.triton.release import RELEASES
from tests.unit.deploy.site_repository import write_model


@pytest.fixture
def load(tmp_path):
    """Reads a file with some text, and flags."""
    file = tmp_path / "site.toml"

    def read(text: str, flags: Mapping[str, Any] | None = None) -> Deployment:
        file.write_text(text)
        return load_deployment(file, flags or {})

    return read


def refusal(load: Callable[..., Deployment], *given: Any) -> str:
    """Return what is said of a file or of flags, in one line."""
    with pytest.raises(DeploymentError) as caught:
        load(*given)
    assert "\n" not in caught.value.cause
    return caught.value.cause


def test_defaults_are_safe():
    deployment = load_deployment(None, {})
    assert deployment.listen == "127.0.0.1"
    assert deployment.threads == 1
    assert deployment.heal
    assert deployment.models == ("nugraph2", "nugraph2_cpu", "nugraph3")


def test_sizes_have_units_and_whole_seconds_and_milliseconds_need_no_decimal_point():
    deployment = load_deployment(None, {"memory": "4g", "shm_size": "512MiB", "timeout": 60})
    assert (deployment.memory, deployment.shm_size) == (4 * 10**9, 512 * 2**20)
    assert deployment.timeout == 60.0
    assert Batch.model_validate({"wait_ms": 2}).wait_ms == 2.0


@pytest.mark.parametrize(
    ("asked", "count"),
    [
        ({"limits": {"waiting": 0, "wait_s": 0}}, 1),
        ({"limits": {"waiting": 0, "wait_s": 0}, "instances": 2}, 2),
        ({}, FEWEST_BOUNDED),
        ({"instances": 1}, FEWEST_BOUNDED),
        ({"instances": 7}, 7),
    ],
)
def test_instances_follow_cores_wishes_and_what_a_bounded_queue_needs(asked, count):
    assert load_deployment(None, {"cpus": 1, **asked}).instance_count() == count


def test_flags_override_the_file_and_absent_flags_do_not(load):
    file = 'name = "site"\ninstances = 4\nmodels = ["nugraph3"]\n'
    deployment = load(file, {"instances": 2, "name": None})
    assert (deployment.name, deployment.instances) == ("site", 2)


def test_paths_in_the_file_are_relative_to_the_file_and_an_image_but_a_sif_is_a_name(
    load, tmp_path
):
    file = 'models = ["nugraph3"]\n[checkpoints]\nnugraph3 = "weights/own.ckpt"\n'
    assert load(file).checkpoints == {"nugraph3": tmp_path / "weights/own.ckpt"}
    file = 'image = "numl/numl.sif"\n'
    assert load(file).image == str(tmp_path / "numl/numl.sif")
    assert load(file, {"image": "numl/numl.sif"}).image == "numl/numl.sif"
    (tmp_path / "numl").mkdir()
    assert load('image = "numl"\n').image == "numl"


def test_with_tls_only_grpc_is_offered_to_other_hosts(load, tmp_path):
    deployment = load('listen = "0.0.0.0"\n[tls]\ncert = "site.pem"\nkey = "/keys/site.key"\n')
    assert deployment.tls == Tls(cert=tmp_path / "site.pem", key=Path("/keys/site.key"))
    assert Resolved(deployment).http_listen == "127.0.0.1"


@pytest.mark.parametrize(
    ("listen", "listen_http", "server", "http"),
    [
        ("127.0.0.1", None, "2.51.0", "127.0.0.1"),
        ("127.0.0.2", None, "2.51.0", "127.0.0.2"),
        ("::1", None, "2.51.0", "::1"),
        ("0.0.0.0", None, "2.51.0", "127.0.0.1"),
        ("0.0.0.0", None, "2.73.0", "127.0.0.1"),
        ("0.0.0.0", "10.0.0.1", "2.51.0", "10.0.0.1"),
        ("0.0.0.0", "localhost", "2.73.0", "127.0.0.1"),
    ],
)
def test_http_which_requests_can_crash_or_block_is_opened_to_others_only_by_a_flag_of_its_own(
    monkeypatch, listen, listen_http, server, http
):
    monkeypatch.setitem(RELEASES, "24.10", replace(RELEASES["24.10"], server=server))
    given = {"listen": listen, "listen_http": listen_http}
    assert Resolved(load_deployment(None, given)).http_listen == http


def test_a_flag_for_tls_overrides_its_own_key_of_the_file_alone(load, tmp_path):
    file = '[tls]\ncert = "site.pem"\nkey = "site.key"\n'
    deployment = load(file, {"tls": {"ca": Path("/ca.pem"), "key": Path("/new.key")}})
    wanted = Tls(cert=tmp_path / "site.pem", key=Path("/new.key"), ca=Path("/ca.pem"))
    assert deployment.tls == wanted


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('models_dir = "models"\ncheckpoints = true', "checkpoints: True is not a table"),
        ('models_dir = "\\u0000"', "models_dir: {folder}/\0: embedded null byte"),
        ('models_dir = "models/nugraph3"', "models_dir: {folder}/models/nugraph3 is not a model "
         "repository: no folder in it has a config.pbtxt"),
        ('models_dir = "models"\n[checkpoints]\nnugraph3 = "own.ckpt"', "checkpoints names "
         "nugraph3, which {folder}/models has: own weights are only for the kit's models"),
    ],
)  # fmt: skip
def test_a_fault_in_or_beside_a_sites_models_is_one_line(load, tmp_path, text, said):
    write_model(tmp_path / "models", "nugraph3")
    assert refusal(load, text).startswith(said.format(folder=tmp_path))


def test_a_sites_models_are_served_beside_the_kits_unless_some_are_named(load, tmp_path):
    for model in ("vision", "nugraph3"):
        write_model(tmp_path / "models", model)
    file = 'models_dir = "models"\n'
    assert load(file).models_dir == tmp_path / "models"
    assert load(file).models == ("nugraph2", "nugraph2_cpu", "nugraph3", "vision")
    assert load(file, {"models": ("vision",)}).models == ("vision",)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('engine = "podman"', "engine: 'podman' is not 'auto', 'local', 'docker' or 'apptainer'"),
        ('devices = ["0"]', "devices name GPUs, but flavour is cpu"),
        ('archive = "env.tar.gz"', "archive given without env packed"),
        ("instances = 0", "instances: 0 is not a whole number from 1 to 256"),
        ('colour = "red"', "colour: no such key (valid keys: name, engine"),
        ("models = []", "models: name at least one model"),
        ('memory = "4x"', "memory: '4x' is not a size like 512m or 4g"),
        ('image = "-v"', "image: '-v' is neither an image's name nor a path"),
        ('image = "a\\nb"', r"image: 'a\nb' is neither an image's name nor a path"),
        ('models = ["../../etc"]', "models: '../../etc' is not a model name"),
        ('models = ["nugraph3\\n"]', r"models: 'nugraph3\n' is not a model name"),
        ('name = "numl\\n"', r"name: 'numl\n' is not at most 40 lower-case letters"),
        ('devices = ["0\\n"]', r"devices: '0\n' is neither the number nor the UUID of a GPU"),
        ('devices = ["0", "--all"]', "devices: '--all' is neither the number nor the UUID"),
        ('triton = "24.10\\n"', r"triton: '24.10\n' is neither a release like 24.10"),
        ('listen = "127.0.0.1\\n"', r"listen: '127.0.0.1\n' is not an IP address"),
        ('listen = "fe80::1%eth0\\n"', r"listen: 'fe80::1%eth0\n' is not an IP address"),
        ("instances = true", "instances: True is not a whole number from 1 to 256"),
        ('instances = "abc"', "instances: 'abc' is not a whole number from 1 to 256"),
        ("threads = 1.5", "threads: 1.5 is not a whole number from 1 to 256"),
        ("timeout = nan", "timeout: nan is not a number from 0.001 to 3600"),
        ("timeout = -1", "timeout: -1 is not a number from 0.001 to 3600"),
        ("memory = 1", "memory: 1 is not a size like 512m or 4g (1m is the least)"),
        ("memory = [1]", "memory: [1] is not a size like 512m or 4g (1m is the least)"),
        ('heal = "sometimes"', "heal: 'sometimes' is not true or false"),
        ("listen = 1", "listen: 1 is not text in quotes"),
        ('models = "nugraph3"', "models: 'nugraph3' is not a list"),
        ("checkpoints = 1", "checkpoints: 1 is not a table"),
        ("archive = 1", "archive: 1 is not a path"),
        ("threads = true", "threads: True is not a whole number from 1 to 256"),
        ("cpus = true", "cpus: True is not a whole number from 1 to 1024"),
        ("timeout = true", "timeout: True is not a number from 0.001 to 3600"),
        ("[ports]\nhttp = true", "ports.http: True is not a whole number from 1 to 65535"),
        (
            "batch = {max_events = true}",
            "batch.max_events: True is not a whole number from 1 to 1024",
        ),
        ("[batch]\nwait_ms = true", "batch.wait_ms: True is not a number from 0 to 1000"),
        ('models = ["nugraph3", "nugraph3"]', "models: a model is named twice"),
        ('name = "a b"', "name: 'a b' is not at most 40 lower-case letters"),
        ('[checkpoints]\nother = "x"', "checkpoint given for other, which is not among"),
        ("ports = [1, 2, 3]", "ports: expected a table with http, grpc and metrics"),
        ("[ports]\nhttp = 8001", "ports: the three ports must differ"),
        ('listen = "node.example"', "listen: 'node.example' is not an IP address"),
        ('[norms]\nnugraph3 = "n.json"', "norm given for nugraph3, which has no checkpoint file"),
        ("instances = ", "not TOML"),
        (f"instances = {'9' * 5000}", "not TOML: Exceeds the limit"),
        ('memory = "99999999999999999999g"', "memory: "),
        (f"instances = {'[' * 1000}{']' * 1000}", "not TOML: nested too deeply"),
        (f"# {' ' * 70_000}", "larger than 32 KiB"),
        ('[tls]\ncert = "x"', "tls.key: missing: TLS needs a certificate and its private key"),
        ('[tls]\ncerts = "x"', "tls.cert: missing"),
        (
            '[tls]\ncert = "x"\nkey = "y"\nroot = "z"',
            "tls.root: no such key (valid keys: cert, key, ca)",
        ),
        ("[batch]\nevents = 4", "batch.events: no such key (valid keys: max_events, wait_ms)"),
        ("[batch]\nmax_events = 0", "batch.max_events: 0 is not a whole number from 1 to 1024"),
        ('tls = "x"', "tls: expected a table with cert, key and ca"),
    ],
)
def test_a_wrong_file_is_named_with_its_fault_in_one_line(load, tmp_path, text, said):
    cause = refusal(load, text)
    assert said in cause
    assert str(tmp_path / "site.toml") in cause


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"instances": "abc"}, "--instances: 'abc' is not a whole number from 1 to 256"),
        ({"shm_size": "x"}, "--shm-size: 'x' is not a size like 512m or 4g (1m is the least)"),
        (
            {"ports": {"http": 70000, "grpc": 1, "metrics": 2}},
            "--ports: 70000 is not a whole number from 1 to 65535",
        ),
        ({"listen_http": "all"}, "--listen-http: 'all' is not an IP address"),
        ({"devices": ("x",), "flavour": "gpu"}, "--gpu: 'x' is neither the number nor the UUID"),
    ],
)
def test_a_wrong_flag_is_named_as_it_is_typed_whatever_stands_in_the_file(
    load, tmp_path, flags, said
):
    cause = refusal(load, "instances = 2\n", flags)
    assert cause.startswith(said)
    assert str(tmp_path / "site.toml") not in cause


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DeploymentError, match=r"none\.toml: No such file") as caught:
        load_deployment(tmp_path / "none.toml", {})
    assert caught.value.remedy == "a TOML file such as deploy/sites/cpu-node.toml, or none"


@pytest.mark.parametrize("kind", ["models_dir", "checkpoints"])
def test_a_path_that_is_not_utf_8_is_refused_at_once(tmp_path, kind):
    path = tmp_path / "\udce9"
    (path / "model").mkdir(parents=True)
    (path / "model" / "config.pbtxt").touch()
    with pytest.raises(DeploymentError, match="not UTF-8"):
        load_deployment(None, {kind: path if kind == "models_dir" else {"nugraph3": path}})


def test_a_models_dir_that_is_not_there_is_named(tmp_path):
    with pytest.raises(DeploymentError) as caught:
        load_deployment(None, {"models_dir": tmp_path / "none"})
    assert caught.value.cause == f"models_dir: {tmp_path}/none: No such file or directory"
    assert caught.value.remedy == "name the folder that holds the models' folders"


@pytest.mark.parametrize("name", ["-x", "a/b", "a\nb", "a\n", "A", "", "x" * 41, "a'b"])
def test_a_name_that_could_break_out_of_a_path_is_refused(name):
    with pytest.raises(DeploymentError):
        load_deployment(None, {"name": name})


@pytest.mark.parametrize("engine", ["local", "apptainer"])
def test_shared_memory_of_another_engine_s_container_is_no_mistake(engine):
    """Plans of running deployments may have it; a launch warns of it."""
    assert Deployment(engine=engine, shm_size="1g").shm_size == 10**9
