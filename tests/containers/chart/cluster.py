"""What a cluster does to the pods of the rendered chart, with real servers, Envoy and DNS.

Each pod is a container of the image under the rendered pod's restrictions, at a loopback address
of its own. dnsmasq gives the addresses of the ready ones, as a headless Service's DNS does. The
test is kubelet and controllers: it runs the rendered probes and hooks, in their order.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docker
from docker.models.containers import Container

from tests.certificates import Pair
from tests.chart import NAMESPACE, RELEASE, Object, find
from tests.containers.conftest import LOCKED_DOWN
from tests.kit import until


def loopback() -> str:
    """Return an address that no other test is likely to use."""
    return f"127.{random.randint(1, 254)}.{random.randint(1, 254)}.{random.randint(1, 254)}"


@dataclass
class Pod:
    """A server: the rendered container, at an address of its own."""

    container: Container
    spec: dict[str, Any]
    address: str

    def exec(self, command: list[str]) -> tuple[int, str]:
        done = self.container.exec_run(command)
        return done.exit_code, done.output.decode()

    def assert_runs(self) -> None:
        """Fail with its log if the server has ended."""
        self.container.reload()
        log = self.container.logs(tail=100).decode()
        assert self.container.status == "running", f"{self.container.attrs['State']}\n{log}"

    def ready(self) -> bool:
        self.assert_runs()
        return self.exec(self.spec["readinessProbe"]["exec"]["command"])[0] == 0

    def terminate(self, grace: int) -> None:
        """As kubelet does: the hook, then SIGTERM, then what is left of the grace period."""
        begun = time.monotonic()
        assert self.exec(self.spec["lifecycle"]["preStop"]["exec"]["command"])[0] == 0
        self.container.stop(timeout=round(grace - (time.monotonic() - begun)))


@dataclass
class Cluster:
    """The chart's pods and its front door.

    Attributes:
        pods: Those that are in the Service.
        ended: Those that were ended as kubelet does.
    """

    engine: docker.DockerClient
    image: str
    objects: list[Object]
    folder: Path
    door: str = field(default_factory=loopback)
    pods: list[Pod] = field(default_factory=list)
    ended: list[Pod] = field(default_factory=list)
    _made: list[Container] = field(default_factory=list)
    _ending: list[threading.Thread] = field(default_factory=list)
    _dns: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"grpcs://{self.door}:8443"

    @property
    def template(self) -> dict[str, Any]:
        spec: dict[str, Any] = find(self.objects, "Deployment")["spec"]["template"]["spec"]
        return spec

    @property
    def door_spec(self) -> dict[str, Any]:
        pod = find(self.objects, "Deployment", f"{RELEASE}-front")["spec"]["template"]["spec"]
        [spec] = pod["containers"]
        return dict(spec)

    def start_pod(self) -> Pod:
        """Start one more pod and put it into the Service when it is ready."""
        [spec] = self.template["containers"]
        address = loopback()
        security = spec["securityContext"]
        assert self.template["securityContext"]["runAsNonRoot"]
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["readOnlyRootFilesystem"]
        assert not security["allowPrivilegeEscalation"]
        memory = {v["name"]: v["emptyDir"] for v in self.template["volumes"]}["shm"]
        container = self.engine.containers.run(
            self.image,
            spec["args"],
            detach=True,
            network_mode="host",
            environment={"NUML_LISTEN": address},
            shm_size=memory["sizeLimit"].removesuffix("i").lower(),
            **LOCKED_DOWN,
        )
        self._made.append(container)
        pod = Pod(container, spec, address)
        until(pod.ready, f"pod at {address}")
        self.pods.append(pod)
        self.publish()
        return pod

    def end_pod(self, pod: Pod) -> None:
        """Take a pod out of the Service and end it, which goes on beside what follows."""
        self.pods.remove(pod)
        self.ended.append(pod)
        self.publish()
        grace = self.template["terminationGracePeriodSeconds"]
        self._ending.append(threading.Thread(target=pod.terminate, args=(grace,)))
        self._ending[-1].start()

    def roll(self) -> None:
        """Replace every pod, as the rendered strategy says: a new one first."""
        assert find(self.objects, "Deployment")["spec"]["strategy"] == {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
        }
        for old in tuple(self.pods):
            self.start_pod()
            self.end_pod(old)
        self.settle()

    def settle(self) -> None:
        """Wait for the pods that end."""
        while self._ending:
            self._ending.pop().join()

    def publish(self) -> None:
        """Tell DNS which pods are ready."""
        name = f"{RELEASE}-pods.{NAMESPACE}.svc"
        hosts = self.folder / "hosts"
        new = hosts.with_suffix(".new")
        new.write_text("".join(f"{pod.address} {name}\n" for pod in self.pods))
        new.rename(hosts)
        if self._dns is not None:
            self._dns.send_signal(signal.SIGHUP)

    @contextmanager
    def front_door(self, pair: Pair) -> Iterator[None]:
        """DNS, and Envoy with the rendered configuration but for addresses and folders."""
        folder = self.folder
        self.give_certificate(pair)
        config = find(self.objects, "ConfigMap", f"{RELEASE}-front")["data"]
        for name, text in config.items():
            (folder / name).write_text(self._here(text))
        with (folder / "envoy.yaml").open("a") as file:
            file.write(_RESOLVER.format(address=self.door))
        arguments = [self._here(word) for word in self.door_spec["args"]]
        self.publish()
        dnsmasq = shutil.which("dnsmasq", path=f"{os.environ['PATH']}:/usr/sbin")
        assert dnsmasq, "no DNS to test with: sudo apt-get install dnsmasq-base"
        envoy = Path(sys.executable).with_name("envoy")
        with (folder / "log").open("wb") as log:
            self._dns = subprocess.Popen(
                [
                    dnsmasq, "--keep-in-foreground", "--conf-file=/dev/null", "--user=root",
                    "--no-resolv", "--no-hosts", f"--addn-hosts={folder / 'hosts'}",
                    "--local-ttl=5", "--local=/svc/", f"--listen-address={self.door}",
                    "--bind-interfaces", "--port=5353", "--pid-file=",
                ],
                stderr=log,
            )  # fmt: skip
            door = subprocess.Popen([envoy, *arguments], stdout=log, stderr=log)
            try:
                yield
            finally:
                for process in (door, self._dns):
                    process.terminate()
                    process.wait(20)

    def give_certificate(self, pair: Pair) -> None:
        """Put it where the front door's Secret is mounted, whole at every moment."""
        for source, name in ((pair.cert, "tls.crt"), (pair.key, "tls.key")):
            shutil.copy(source, self.folder / f"new.{name}")
            (self.folder / f"new.{name}").rename(self.folder / name)

    def drain_front_door(self) -> None:
        """Run the front door's hook."""
        command = self.door_spec["lifecycle"]["preStop"]["exec"]["command"]
        subprocess.run([self._here(word) for word in command], check=True)

    def _here(self, text: str) -> str:
        """Replace the rendered addresses and folders."""
        for rendered, here in {
            "0.0.0.0": self.door,
            "127.0.0.1": self.door,
            "/etc/envoy": str(self.folder),
            "/etc/numl/tls": str(self.folder),
        }.items():
            text = text.replace(rendered, here)
        return text

    def close(self) -> None:
        self.settle()
        for container in self._made:
            container.remove(force=True, v=True)


_CARES = "envoy.extensions.network.dns_resolver.cares.v3.CaresDnsResolverConfig"
_RESOLVER = f"""
typed_dns_resolver_config:
  name: envoy.network.dns_resolver.cares
  typed_config:
    "@type": type.googleapis.com/{_CARES}
    resolvers:
      - socket_address: {{{{address: {{address}}, port_value: 5353}}}}
"""
