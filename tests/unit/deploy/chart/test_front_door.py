"""What the chart renders around the front door: its account, and how clients reach it."""

from typing import Any

import pytest

from tests.chart import SITES, Site, find, render, render_notes


def test_the_front_door_has_none_of_the_servers_cloud_identity():
    objects = render(SITES["everything"])
    own = find(objects, "ServiceAccount", "numl-front")
    assert "annotations" not in own["metadata"]
    assert own["automountServiceAccountToken"] is False
    pods = {
        each["metadata"]["name"]: each["spec"]["template"]["spec"]["serviceAccountName"]
        for each in objects
        if each["kind"] == "Deployment"
    }
    assert pods == {"numl": "numl", "numl-front": "numl-front"}


@pytest.mark.parametrize(
    ("name", "kind", "policy"),
    [
        ("cpu", "LoadBalancer", "Local"),
        ("cpu", "NodePort", "Local"),
        ("cpu", "ClusterIP", None),
        ("tenants", "LoadBalancer", None),
    ],
)
def test_a_quota_by_address_is_the_client_s_and_no_node_s(name, kind, policy):
    door = {**SITES[name].values.get("frontDoor", {}), "service": {"type": kind}}
    service = find(render(Site(("cpu",), {"frontDoor": door})), "Service", "numl-front")
    assert service["spec"].get("externalTrafficPolicy") == policy


def test_who_shares_one_quota_behind_a_route_is_told():
    def notes(values: dict[str, Any]) -> str:
        return render_notes(Site(("cpu", "okd"), values))

    said = "Behind the Route all clients have the router's address and share one quota"
    assert said in notes({})
    assert said not in notes({"frontDoor": SITES["tenants"].values["frontDoor"]})
    assert said not in notes({"route": {"enabled": False}})
