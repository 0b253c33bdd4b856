"""Names of what is in a registry of images."""

import re
from dataclasses import dataclass
from ipaddress import ip_address

from deploy.host.errors import DeploymentError

# A first part with neither a dot nor a port is not a host's name, but Docker Hub's.
_HOST = r"(?P<host>localhost|[\w-]+(?:\.[\w-]+)+|[\w-]+(?=:\d))(?P<port>:\d+)?"
_REFERENCE = re.compile(
    _HOST + r"/(?P<repository>[a-z0-9]+(?:[._/-]+[a-z0-9]+)*)"
    r"(?::(?P<tag>\w[\w.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)


@dataclass(frozen=True)
class Reference:
    """A name in a registry ``HOST[:PORT]``, with a tag, a digest (``sha256:...``) or neither."""

    host: str
    repository: str
    tag: str = ""
    digest: str = ""

    @property
    def name(self) -> str:
        return f"{self.host}/{self.repository}"

    @property
    def loopback(self) -> bool:
        """Whether the registry is on this host, where TLS is optional."""
        name = self.host.partition(":")[0]
        try:
            return name == "localhost" or ip_address(name).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        """Return it as Docker writes it; the digest takes precedence over the tag."""
        if self.digest:
            return f"{self.name}@{self.digest}"
        return f"{self.name}:{self.tag}" if self.tag else self.name


def parse_reference(text: str) -> Reference:
    # Docker shortens names in its own registry.
    found = _REFERENCE.fullmatch(text) or _REFERENCE.fullmatch(f"docker.io/{text}")
    if found is None:
        raise DeploymentError(
            f"{text!r} is not a reference to an image in a registry", "HOST/REPOSITORY:TAG"
        )
    host = found["host"] + (found["port"] or "")
    return Reference(host, found["repository"], found["tag"] or "", found["digest"] or "")
