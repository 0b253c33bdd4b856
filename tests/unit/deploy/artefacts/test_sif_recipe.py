"""The container's own files: environment, labels, definition, what inspect shows."""

import json

import pytest

from deploy.artefacts.sif import DEFINITION, Origin, describe, environment_script, rendered
from tests.programs import run_program

ORIGIN = Origin("docker-daemon", "numlkit:cpu")
EPOCH = 1_700_000_000
VALUES = ("plain", "two words", "it's", 'a "b" $c `d` \\e', "a=b", "")


@pytest.fixture
def sandbox(tmp_path):
    """What Apptainer makes of the definition, as far as it is read here."""
    folder = tmp_path / "sandbox"
    records = folder / ".singularity.d"
    (records / "env").mkdir(parents=True)
    for name in ("runscript", "startscript", "test", "runscript.help"):
        (records / name).write_text(f"the {name}\n\n")
    (records / "env" / "90-environment.sh").write_text("export NUML_LISTEN=x\n")
    (records / "labels.json").write_text(json.dumps({"apptainer": "1.4.5", "both": "apptainer"}))
    return folder


def _shell(script: str, environment: dict[str, str], show: str) -> str:
    done = run_program(
        ["/bin/sh", "-eu", "-c", f'{script}printf %s "${show}"'], env=environment, check=True
    )
    return done.stdout


@pytest.mark.parametrize(
    ("variable", "users", "value"),
    [
        *((f"NUML_X={value}", {}, value) for value in VALUES),
        ("NUML_X=image", {"NUML_X": "mine"}, "mine"),
        ("PATH=/opt/bin", {"PATH": "/host"}, "/opt/bin"),
    ],
)
def test_a_variable_of_the_image_has_its_value_or_the_users_but_path(variable, users, value):
    name = variable.partition("=")[0]
    assert _shell(environment_script([variable]), users, name) == value


def test_the_network_and_the_home_folder_are_not_the_images_to_choose():
    assert environment_script(["NUML_LISTEN=0.0.0.0", "HOME=/tmp"]) == "#!/bin/sh\n"


def test_the_definition_listens_on_loopback_unless_told_otherwise():
    text = DEFINITION.read_text()
    script = text[text.index("%environment\n") + 13 : text.index("%runscript")]
    assert _shell(script, {}, "NUML_LISTEN") == "127.0.0.1"
    assert _shell(script, {"NUML_LISTEN": "0.0.0.0"}, "NUML_LISTEN") == "0.0.0.0"


def test_the_recorded_definition_names_the_image_and_no_folder():
    text = rendered(ORIGIN)
    assert text.startswith("Bootstrap: docker-daemon\nFrom: numlkit:cpu\n")
    assert "{{" not in text
    assert 'if [ -n "${NUML_CONTEXT:-}" ]' in text


def test_labels_of_image_and_apptainer_stand_together(sandbox):
    describe(sandbox, ORIGIN, labels={"title": "numlkit", "both": "image"}, epoch=0)
    assert json.loads((sandbox / ".singularity.d/labels.json").read_text()) == {
        "title": "numlkit",
        "apptainer": "1.4.5",
        "both": "image",
        "org.label-schema.build-date": "1970-01-01T00:00:00+00:00",
        "org.label-schema.usage.singularity.deffile.bootstrap": "docker-daemon",
        "org.label-schema.usage.singularity.deffile.from": "numlkit:cpu",
    }


def test_inspect_is_told_what_is_in_the_files(sandbox):
    records = describe(sandbox, ORIGIN, labels={"a": "b"}, epoch=EPOCH, image={"Env": ["X=1"]})
    assert records.definition == rendered(ORIGIN)
    attributes = {
        "runscript": "the runscript",
        "startscript": "the startscript",
        "test": "the test",
        "helpfile": "the runscript.help",
        "deffile": rendered(ORIGIN).rstrip(),
        "environment": {
            "/.singularity.d/env/10-docker2singularity.sh": environment_script(["X=1"]).rstrip(),
            "/.singularity.d/env/90-environment.sh": "export NUML_LISTEN=x",
        },
        "labels": json.loads((sandbox / ".singularity.d/labels.json").read_text()),
    }
    found = json.loads(records.documents["inspect-metadata.json"])
    assert found == {"data": {"attributes": attributes}, "type": "container"}


def test_of_an_image_s_configuration_what_oci_keeps_is_recorded(sandbox):
    image = {"User": "1000:0", "Cmd": None, "Entrypoint": ["/x"], "Hostname": "here"}
    records = describe(sandbox, ORIGIN, labels={}, epoch=EPOCH, image=image)
    kept = json.loads(records.documents["oci-config.json"])
    assert kept == {"User": "1000:0", "Entrypoint": ["/x"]}
    without = describe(sandbox, ORIGIN, labels={}, epoch=EPOCH)
    assert set(without.documents) == {"inspect-metadata.json"}
