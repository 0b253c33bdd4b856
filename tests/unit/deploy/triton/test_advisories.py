import json
from dataclasses import replace

import pytest

from deploy.artefacts.sbom import of_triton, sbom
from deploy.artefacts.statements import sbom_of, vex_of, write_vex
from deploy.checks.host import triton_findings
from deploy.checks.launch import check_given
from deploy.deployment.deployment import load_deployment
from deploy.engines.resolved import Resolved
from deploy.triton.advisories import advisories, summary
from deploy.triton.release import find_release
from tests.artefacts import artefact

TRITON = find_release("24.10")


@pytest.mark.parametrize(
    ("server", "count", "newest"),
    [
        ("2.46.0", 17, "26.03"),
        ("2.59.0", 17, "26.03"),
        ("2.59.1", 11, "26.03"),
        ("2.60.0", 10, "26.03"),
        ("2.66.0", 8, "26.03"),
        ("2.67.0", 0, ""),
    ],
)
def test_a_release_has_what_only_later_ones_have_fixed(server, count, newest):
    release = replace(TRITON, server=server, release="X")
    assert len(advisories(release)) == count
    said = summary(release)
    if not count:
        assert said is None
        return
    assert said.startswith(f"Triton X has {count} published vulnerabilities that {newest} does not")


@pytest.mark.parametrize(("listen", "warned"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_a_service_for_others_is_warned_once_and_doctor_says_it_always(listen, warned):
    resolved = Resolved(load_deployment(None, {"listen": listen}))
    [finding] = triton_findings(resolved)
    assert "Triton 24.10 has 17 published vulnerabilities" in finding.detail
    assert (finding.level == "warning") == warned
    assert check_given(resolved) == ([finding] if warned else [])


def test_a_vex_names_the_component_of_the_sbom_beside_it(tmp_path):
    made = artefact("sif", "a.sif", "0")
    listed = sbom("container", "a.sif", [of_triton(TRITON)], epoch=0)
    (tmp_path / sbom_of(made)).write_text(listed)
    write_vex(tmp_path, made, TRITON)
    document = json.loads((tmp_path / vex_of(made)).read_text())
    assert len(document["vulnerabilities"]) == 17
    first = document["vulnerabilities"][0]
    number = json.loads(listed)["serialNumber"].removeprefix("urn:uuid:")
    assert first == {
        "id": "CVE-2025-23310",
        "source": {"name": "NVD", "url": "https://nvd.nist.gov/vuln/detail/CVE-2025-23310"},
        "recommendation": "use Triton 25.07 or later",
        "analysis": {"state": "exploitable"},
        "affects": [{"ref": f"urn:cdx:{number}/1#pkg:pypi/nvidia-pytriton@0.7.0"}],
    }
    write_vex(tmp_path, made, replace(TRITON, server="2.71.0"))
    assert not (tmp_path / vex_of(made)).exists()
