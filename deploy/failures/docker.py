"""What a Docker engine says when it is not there, or does not start a container.

The patterns were seen with Docker 20.10, or are those of the sources named beside them.
"""

from __future__ import annotations

from deploy.failures.row import PORT_TAKEN, Failure, row

# How the docker SDK begins to say that it reaches no engine.
NO_CONNECTION = "Error while fetching server API version"
_BIND = r"(?:Bind for|listen tcp\d?|bind host port(?: for)?) (?P<where>\S+?:\d+)"
INSTALL_TOOLKIT = (
    "install nvidia-container-toolkit, then: sudo nvidia-ctk runtime configure --runtime=docker "
    "&& sudo systemctl restart docker; or start with --cpu"
)
_DRIVER = "install NVIDIA's driver until nvidia-smi works on this host, or start with --cpu"
_DELEGATE = (
    "leave out --cpus and --memory, or have the administrator delegate the cgroup controllers "
    "(rootless engines: cgroup v2, and Delegate=yes for user@.service)"
)

DOCKER: tuple[Failure, ...] = (
    # In the words of the docker SDK, and of the docker command.
    row(
        NO_CONNECTION + r": .*Permission ?[dD]enied"
        r"|permission denied while trying to connect to the [Dd]ocker",
        "the Docker engine does not let this user in",
        'sudo usermod -aG docker "$USER", then log in anew',
    ),
    row(
        NO_CONNECTION + r": .*Read timed out|\AUnixHTTPConnectionPool\(.*Read timed out",
        "the Docker engine is there, but does not answer",
        "its log may say why: journalctl -u docker; sudo systemctl restart docker starts it anew",
    ),
    row(
        NO_CONNECTION + r"|Cannot connect to the Docker daemon",
        "no Docker engine answers here",
        "start it (sudo systemctl start docker), or install it "
        "(sudo scripts/install_container_tools)",
    ),
    row(
        # All that the SDK says of an engine that ends while it works.
        r"\A\('Connection aborted\.'",
        "the Docker engine has gone away",
        "sudo systemctl status docker, and journalctl -u docker, tell why",
    ),
    row(
        r'(?i)container name "/?(?P<name>[^"]+)" is already in use',
        "there is a container named {name} already",
        "docker rm {name} if it is nobody's; it is this host's own if "
        "python3 deploy/doctor.py says so",
    ),
    row(
        _BIND + r"[^\n]*already (?:allocated|in use)",
        "{where} " + PORT_TAKEN + " the container started",
        "repeat the command, or choose other ports with --ports HTTP,GRPC,METRICS",
    ),
    row(
        _BIND + r"[^\n]*permission denied",
        "the Docker engine may not listen on {where}",
        "ports from 1024 on with --ports HTTP,GRPC,METRICS",
    ),
    row(
        # moby: libnetwork/iptables; after a firewall was started anew.
        r"driver failed programming external connectivity[^\n]*"
        r"(?:iptables|No chain/target/match by that name)[^\n]*",
        "the Docker engine cannot publish ports: its firewall rules are gone",
        "sudo systemctl restart docker, which makes them anew",
    ),
    row(
        r"No such image: (?P<image>\S+)|pull access denied for (?P<pulled>[^\s,]+)",
        "the Docker engine has no image {image}{pulled}",
        "python3 deploy/build.py --target image, or docker pull, or docker load",
    ),
    row(
        # The latter: crun, which podman starts containers with.
        r"error setting rlimit[^\n]*|setrlimit [`'\"]?RLIMIT_\w+[^\n]*",
        "the container engine may not set a container's resource limits (ulimit): it has no "
        "CAP_SYS_RESOURCE, as when it runs in a container itself",
        "run the engine on the host itself, or allow it that capability",
    ),
    row(
        r'could not select device driver "[^"]*" with capabilities: \[\[[^\n]*gpu'
        r'|[Uu]nknown (?:or invalid )?runtime (?:name|specified)[: "]*nvidia',
        "the Docker engine has no runtime for GPUs: it lacks the NVIDIA container toolkit, or "
        "does not know of it",
        INSTALL_TOOLKIT,
    ),
    row(
        # moby 29 and podman: GPUs by the container device interface.
        r"failed to discover GPU vendor from CDI|unresolvable CDI devices",
        "the container engine knows of no such GPU: no device interface (CDI) names it",
        "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml (it comes with "
        "nvidia-container-toolkit); or start with --cpu",
    ),
    row(
        # libnvidia-container
        r"nvidia-container-cli: requirement error: unsatisfied condition: (?P<wanted>[^\s,]+)",
        "NVIDIA's driver on this host is older than the image needs ({wanted})",
        "install a newer driver, or start with --cpu",
    ),
    row(
        # libnvidia-container
        r"nvidia-container-cli: (?:initialization error: )?(?P<reason>[^\n]+?)"
        r"(?:: unknown)?(?:\n|$)",
        "the NVIDIA container toolkit finds no usable driver on this host: {reason}",
        _DRIVER,
    ),
    row(
        r"bind source path does not exist: (?P<path>[^\n]+)",
        "{path} is to be seen in the container and is not there",
        "repeat the command; an engine on another host (DOCKER_HOST) cannot see this one's folders",
    ),
    row(
        r"NanoCPUs can not be set|CPU cfs \w+ can not be set",
        "the Docker engine cannot limit CPUs: the kernel's cgroup for that is not there",
        _DELEGATE,
    ),
    row(
        # crun and runc without rights on a controller
        r"requested cgroup controller [`'](?P<controller>\w+)[`'] is not available"
        r"|(?:openat2?|failed to write|opening file)[^\n]*/(?P<file>(?:cpu|memory|pids)\.\w+)[`':]"
        r"[^\n]*(?:no such file|permission denied)",
        "the container engine cannot set limits: no cgroup controller {controller}{file} for it",
        _DELEGATE,
    ),
    row(
        r"Range of CPUs is from (?P<range>[^\n,]+), as there are only (?P<count>\d+) CPUs",
        "more CPUs are asked for than the {count} there are",
        "--cpus with {count} or fewer",
    ),
    row(
        r"Minimum memory limit allowed is (?P<least>\w+)",
        "less memory is asked for than the engine's least, {least}",
        "--memory with more, as in --memory 4g",
    ),
    row(
        r'exec: "(?P<program>/[^"]+)": (?:stat|executable file not found)[^\n]*',
        "the image has no {program}",
        "--image with one that deploy/build.py has made",
    ),
)
