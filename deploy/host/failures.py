"""What programs say when they fail: which line says why, what it means and what to do.

The patterns were seen with Triton 24.10, Docker 20.10 and Apptainer 1.4.5, or are taken from the
sources named next to them.
"""

import re
from itertools import chain

from deploy.host.errors import LaunchError

# A pattern searched in a program's output; what is wrong and what to do, each in one line, where
# ``{name}`` stands for the pattern's group of that name and ``{0}`` for the whole match.
Row = tuple[str, str, str]
# In the causes that go away when a launch chooses other ports.
PORT_TAKEN = "was taken by another program while"
# Paths have at most 4,096 characters, and a log may have a line of a megabyte.
# fmt: off
_FULL = "df -h lists full file systems; df -i, those that cannot hold more files"
GENERAL: tuple[Row, ...] = (
    (r"(?P<path>/[^\s:'\"]{1,4096})['\"]?: [Nn]o space left on device",
     "disk full: {path} cannot be written",
     f"free space there; {_FULL}"),
    (r"[Nn]o space left on device", "disk full: no space left on device", f"free space; {_FULL}"),
    (r"(?i)exec format error",
     "a program in the image or environment was built for another processor than this host's",
     "uname -m names this host's; build the image on a host of the same kind"),
)
_MODEL = r"failed to load '(?P<model>[^']+)' version \d+: Internal: "
_WRONG_PYTHON = "the environment's Python must be the version that the stub is built for"
_FREE_SHM = "free space in /dev/shm (numlkit doctor --fix removes what dead servers left)"
_REMAKE = "numlkit doctor, which names the environment and how to make it again"
TRITON: tuple[Row, ...] = (
    (r"(?:/[^\s:]{1,4096}: (?:cannot read file data: )?|\[Errno 5\] )Input/output error"
     r"(?:: '[^'\n]+')?",
     "a file cannot be read ({0}): the .sif or the disk is damaged",
     "compare the .sif's sha256 with dist/manifest.json; dmesg shows a failing disk"),
    # Triton goes on to say that the socket is in use, which it is not.
    (r"Invalid private key|Invalid cert chain|Handshaker factory creation failed",
     "the server cannot use its certificate and private key for TLS",
     "numlkit up with the same --tls-cert and --tls-key names the fault"),
    (r"failed to start (?P<service>\w+) service: .*?'(?P<where>[^']+)' already in use",
     "{where} " + PORT_TAKEN + " the server started ({service})",
     "run the command again, or choose other ports with --ports HTTP,GRPC,METRICS"),
    (r"failed to start (?P<service>\w+) service: (?P<reason>[^\n]+)",
     "the server cannot start its {service} service: {reason}",
     "choose other ports with --ports HTTP,GRPC,METRICS, or another --listen address"),
    (r"Unable to initialize shared memory key[^\n]*No space left on device"
     r"|Unable to (?:create|allocate) shared memory[^\n]*",
     "/dev/shm is too small for the model instances (1 MB for each at load)",
     f"{_FREE_SHM}, give the container more (--shm-size), or use fewer --instances"),
    (r"Failed to increase the shared memory pool size[^\n]*",
     "/dev/shm is full: a request's tensors do not fit",
     f"{_FREE_SHM}, or give the container more (--shm-size)"),
    (r"error while loading shared libraries: (?P<library>libpython[^:]+):",
     "the stub cannot find the execution environment's {library}",
     _REMAKE),
    (r"error while loading shared libraries: (?P<library>[^:]+):",
     "the shared library {library} is missing",
     "install the system package that provides it"),
    (_MODEL + r'Failed to get the canonical path for (?P<path>[^\n"]+?)\.?"?(?:\n|$)',
     "model {model}: its execution environment {path} does not exist",
     _REMAKE),
    (r"archive_read_open_filename\(\) failed",
     "a packed execution environment is not a tar or tar.gz archive",
     "pack it again: tar.gz and plain tar are read, zst is not"),
    (r"archive_read_(?:data_block\(\) failed with error code = -30|next_header\(\) failed)",
     "a packed execution environment is truncated or damaged",
     "copy or pack it again and compare its sha256"),
    (r"archive_write_data_block\(\) failed[^\n]*",
     "/tmp is full: a packed execution environment is extracted there",
     "free space in /tmp (df -h /tmp; numlkit doctor --fix removes what dead servers left), or "
     "use an unpacked environment"),
    (r"Path (?P<path>\S+/bin/activate) does not exist",
     "the execution environment has no {path}",
     "the environment's folder, or its archive's root, must hold bin/activate"),
    (r"ModuleNotFoundError: No module named 'numpy'",
     "the stub runs with an interpreter that has no numpy: not the execution environment's",
     _WRONG_PYTHON),
    # The last: a libpython beside the standard library of another build, which has it built in.
    (r"failed to get the Python codec of the filesystem encoding|Failed to import encodings module"
     r"|ModuleNotFoundError: No module named '_struct'",
     "the stub's Python finds no standard library: not the execution environment's",
     _WRONG_PYTHON),
    # Said by numl_serving in an environment that is not its own.
    (_MODEL + r"ModelFilesError: wrong execution environment: (?P<found>.+?): check",
     "model {model} is not running in its execution environment: {found}",
     f"{_WRONG_PYTHON}; EXECUTION_ENV_PATH must name it"),
    # Said by the probe: Triton's log says nothing.
    (r"output \S+ is empty where its shape is [^\n]*",
     "{0}",
     "the execution environment needs numpy < 2 for this Triton (bin/pip show numpy)"),
    (r"ModuleNotFoundError: No module named '(?P<module>[^']+)'",
     "the execution environment lacks the Python package {module}, which a model imports",
     "add it to the environment's lock, or correct the import in model.py"),
    (r"(?:OSError|ImportError): (?P<library>lib[^\s:]+): cannot open shared object file",
     "the execution environment lacks the library {library}",
     "add the package that provides it (libmpi: mpich) to the environment's lock"),
    (r"AttributeError: module '[^']+' has no attribute 'TritonPythonModel'",
     "a model.py defines no class TritonPythonModel",
     "see model_repository/nugraph3/1/model.py for an example"),
    # Seen with 24.10 when models start on a busy host, in server and stub.
    (r"boost::interprocess::lock_exception",
     "Triton crashed on a lock in its shared memory, which happens at random "
     "(triton-inference-server/server issue 8882)",
     "run the command again"),
    # Seen with 24.10, as is the second line; which releases have it, says issue 7368 there.
    (r"Signal \(11\) received\.(?:\n *\d+# .*)*?\n *\d+# pthread_mutex_lock in "
     r"|The futex facility returned an unexpected error code",
     "Triton crashed on a request that its client gave up just as it was answered "
     "(triton-inference-server/server issue 7368)",
     "give clients deadlines that answers keep, or use Triton 25.04 or later (--triton)"),
    # What C++ says where it cannot start a thread.
    (r"what\(\): +Resource temporarily unavailable",
     "the system refuses the server or a model another thread, which counts as a process",
     "raise the limit of processes (ulimit -u shows it, and a control group may have pids.max), or "
     "use fewer --instances"),
    # On a busy host the server may give up on a stub before it reads why the stub ended.
    (r"Failed to initialize Python stub: (?P<reason>.+?)(?:\\n|\n|\"?$)"
     rf"(?:(?!failed to load ')[\s\S])*?{_MODEL}Stub process '[^']+' is not healthy",
     "model {model} cannot be loaded: {reason}",
     "see the log for the whole message"),
    (r"Signal \(11\) received[\s\S]*libtriton_python\.so",
     "the server crashed in its Python backend, as it does when a stub is of another release",
     "remove triton_python_backend_stub beside your models, and run numlkit up again"),
    (_MODEL + r"Stub process '[^']+' is not healthy",
     "model {model}: its process died during initialisation (exit, crash or out of memory)",
     "the log's last lines before that message say more; check free memory (free -g), and a "
     ".sif's sha256 against dist/manifest.json"),
    # The kit's Triton lies in the cache folder, which somebody may clear under a running server.
    (r"failed to load '(?P<model>[^']+)' version \d+: [^\n]*?"
     r"unable to find backend library for backend 'python'",
     "model {model} cannot be loaded: Triton's own files are gone",
     "numlkit down, then numlkit up with the same file and flags, which unpacks them again"),
    (r"failed to load '(?P<model>[^']+)' version \d+: [^\n]*?"
     r"unable to find backend library for backend '(?P<backend>[^']+)'",
     "model {model} needs backend {backend}, which this Triton does not have",
     "use --env packed --image with an image that has it: NVIDIA's has most"),
    (r"unable to find 'libtritoncache_local\.so' for cache",
     "this Triton has no response cache, which a model's configuration asks for",
     "take response_cache out of it, or use a Triton that has caches/local"),
    (r"Failed to create environment directory for '(?P<path>[^']+)'",
     "a packed execution environment could not be unpacked, which blocks all others",
     "free space in /tmp (df -h /tmp); the log's first message about an archive says more"),
    (r"has kind KIND_GPU but (?:no GPUs are available|server does not support GPUs)",
     "a model needs a GPU and the server sees none",
     "start it with --cpu, or check nvidia-smi on this host"),
)
# Messages that say that something failed, and not what.
TRITON_LAST: tuple[Row, ...] = (
    (r"failed to load '(?P<model>[^']+)' version \d+: (?P<kind>[\w ]+): "
     r"(?P<reason>.+?)(?:\\n|\n|\"?$)",
     "model {model} cannot be loaded: {reason}",
     "see the log for the whole message"),
    (r"Poll failed for model directory '(?P<model>[^']+)': (?P<reason>[^\n]+)",
     "model {model}: {reason}",
     "correct its config.pbtxt or its folder"),
    (r"(?:creating server|failed to load all models|Internal - )[^\n]*",
     "the server did not start: {0}",
     "see the log for the whole message"),
)
# Begins what the docker SDK says when it reaches no engine.
NO_CONNECTION = "Error while fetching server API version"
_BIND = r"(?:Bind for|listen tcp\d?|bind host port(?: for)?) (?P<where>\S+?:\d+)"
INSTALL_TOOLKIT = (
    "install nvidia-container-toolkit, then: sudo nvidia-ctk runtime configure --runtime=docker "
    "&& sudo systemctl restart docker; or start with --cpu"
)
_DRIVER = "install NVIDIA's driver (nvidia-smi must then work), or start with --cpu"
_DELEGATE = (
    "leave out --cpus and --memory, or have the administrator delegate the cgroup controllers "
    "(rootless engines: cgroup v2, and Delegate=yes for user@.service)"
)
DOCKER: tuple[Row, ...] = (
    # In the words of the docker SDK, and of the docker command.
    (NO_CONNECTION + r": .*Permission ?[dD]enied"
     r"|permission denied while trying to connect to the [Dd]ocker",
     "this user may not use the Docker engine",
     "sudo usermod -aG docker $USER, then log in again"),
    (NO_CONNECTION + r": .*Read timed out|\AUnixHTTPConnectionPool\(.*Read timed out",
     "the Docker engine is running, but does not answer",
     "journalctl -u docker may say why; then: sudo systemctl restart docker"),
    (NO_CONNECTION + r"|Cannot connect to the Docker daemon",
     "no Docker engine is running here",
     "start it (sudo systemctl start docker), or install it "
     "(sudo scripts/install_container_tools)"),
    # All that the SDK says when an engine stops in the middle of a request.
    (r"\A\('Connection aborted\.'",
     "the Docker engine has stopped",
     "sudo systemctl status docker and journalctl -u docker say why"),
    (r'(?i)container name "/?(?P<name>[^"]+)" is already in use',
     "a container named {name} already exists",
     "docker rm {name} if nobody needs it; numlkit doctor says whether it is a leftover"),
    (_BIND + r"[^\n]*already (?:allocated|in use)",
     "{where} " + PORT_TAKEN + " the container started",
     "run the command again, or choose other ports with --ports HTTP,GRPC,METRICS"),
    (_BIND + r"[^\n]*permission denied",
     "the Docker engine may not listen on {where}",
     "choose ports from 1024 on with --ports HTTP,GRPC,METRICS"),
    # moby: libnetwork/iptables; after a firewall was restarted.
    (r"driver failed programming external connectivity[^\n]*"
     r"(?:iptables|No chain/target/match by that name)[^\n]*",
     "the Docker engine cannot publish ports: its firewall rules are gone",
     "sudo systemctl restart docker, which restores them"),
    (r"No such image: (?P<image>\S+)|pull access denied for (?P<pulled>[^\s,]+)",
     "the Docker engine has no image {image}{pulled}",
     "numlkit build --target image, or docker pull, or docker load"),
    # The latter: crun, which podman starts containers with.
    (r"error setting rlimit[^\n]*|setrlimit [`'\"]?RLIMIT_\w+[^\n]*",
     "the container engine may not set a container's resource limits (ulimit): it has no "
     "CAP_SYS_RESOURCE, as when it runs in a container itself",
     "run the engine on the host itself, or allow it that capability"),
    (r'could not select device driver "[^"]*" with capabilities: \[\[[^\n]*gpu'
     r'|[Uu]nknown (?:or invalid )?runtime (?:name|specified)[: "]*nvidia',
     "the Docker engine has no GPU runtime: the NVIDIA container toolkit is missing or not "
     "configured",
     INSTALL_TOOLKIT),
    # moby 29 and podman: GPUs by the container device interface.
    (r"failed to discover GPU vendor from CDI|unresolvable CDI devices",
     "the container engine does not know that GPU: no CDI specification lists it",
     "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml (it comes with "
     "nvidia-container-toolkit); or start with --cpu"),
    # libnvidia-container
    (r"nvidia-container-cli: requirement error: unsatisfied condition: (?P<wanted>[^\s,]+)",
     "NVIDIA's driver on this host is older than the image needs ({wanted})",
     "install a newer driver, or start with --cpu"),
    # libnvidia-container
    (r"nvidia-container-cli: (?:initialization error: )?(?P<reason>[^\n]+?)"
     r"(?:: unknown)?(?:\n|$)",
     "the NVIDIA container toolkit finds no usable driver on this host: {reason}",
     _DRIVER),
    (r"bind source path does not exist: (?P<path>[^\n]+)",
     "{path} does not exist and cannot be mounted in the container",
     "run the command again; an engine elsewhere (DOCKER_HOST) cannot see this host's folders"),
    (r"NanoCPUs can not be set|CPU cfs \w+ can not be set",
     "the Docker engine cannot limit CPUs: the kernel has no cgroup for it",
     _DELEGATE),
    # crun and runc without rights on a controller
    (r"requested cgroup controller [`'](?P<controller>\w+)[`'] is not available"
     r"|(?:openat2?|failed to write|opening file)[^\n]*/(?P<file>(?:cpu|memory|pids)\.\w+)[`':]"
     r"[^\n]*(?:no such file|permission denied)",
     "the container engine cannot set limits: it has no cgroup controller {controller}{file}",
     _DELEGATE),
    (r"Range of CPUs is from (?P<range>[^\n,]+), as there are only (?P<count>\d+) CPUs",
     "more CPUs are requested than this host's {count}",
     "--cpus with {count} or fewer"),
    (r"Minimum memory limit allowed is (?P<least>\w+)",
     "less memory is requested than the engine's minimum, {least}",
     "give it more, as in --memory 4g"),
    (r'exec: "(?P<program>/[^"]+)": (?:stat|executable file not found)[^\n]*',
     "the image has no {program}",
     "use --image with one that numlkit build made"),
)
_SETUID = "or install apptainer-suid"
_AGAIN = (
    "compare its sha256 with dist/manifest.json, then copy or build it again "
    "(numlkit build --target sif)"
)
_NAMESPACES = (
    "sudo sysctl -w user.max_user_namespaces=15000 (Ubuntu from 23.10 on: also "
    f"kernel.apparmor_restrict_unprivileged_userns=0), {_SETUID}"
)
APPTAINER: tuple[Row, ...] = (
    (r"open image (?P<path>[^\n]+?): image format not recognized",
     "{path} is not a .sif file",
     "numlkit build --target sif, or --image PATH.sif"),
    (r"open image (?P<path>[^\n]+?): failed to retrieve path",
     "{path}: no such file",
     "numlkit build --target sif, or --image PATH.sif"),
    (r"image's architecture \((?P<image>\w+)\) could not run on the host's \((?P<host>\w+)\)",
     "the .sif is for {image} processors; this host's is {host}",
     "build it on such a host: numlkit build --target sif"),
    (r"bad superblock for squashfs image partition|failed to read SIF partition at offset"
     r"|(?:read|fork/exec) /\.singularity\.d/\S+: input/output error",
     "the .sif is damaged or truncated",
     _AGAIN),
    (r"failed to find loop device: (?P<reason>[^\n]+)",
     "Apptainer found no loop device to mount the .sif: {reason}",
     "sudo modprobe loop, or free some (losetup --list)"),
    (r"exec /\.singularity\.d/runscript failed|No runscript and no /bin/sh",
     "the .sif has no usable start script: it was not built by this kit",
     "use --image with one that numlkit build made"),
    (r"squashfuse\w* exited: fuse: failed to open /dev/fuse: Permission denied",
     "this user may not open /dev/fuse, which Apptainer needs to mount a .sif",
     f"sudo chmod 666 /dev/fuse (its usual mode), {_SETUID}"),
    # libfuse; the latter if the device is a different one.
    (r"squashfuse\w* exited: fuse: (?:device not found|failed to open|mount failed)[^\n]*",
     "no usable /dev/fuse here, which Apptainer needs to mount a .sif without root",
     f"sudo modprobe fuse, {_SETUID}"),
    (r"instance (?P<name>\S+) already exists",
     "an instance named {name} already exists",
     "apptainer instance stop {name} if nobody needs it; numlkit doctor says whether it is a "
     "leftover"),
    # apptainer: cmd/starter/c/starter.c
    (r"Failed to create (?:user|mount|container) (?:namespace|process): (?P<reason>[^\n]+)",
     "ordinary users may not create namespaces here, which Apptainer needs: {reason}",
     _NAMESPACES),
    (r"cannot use cgroups - (?P<reason>[^\n]+)",
     "Apptainer cannot limit CPUs or memory here: {reason}",
     "run it in a systemd session with cgroup v2, or let the batch system set the limits"),
    (r"Could not find any nv files on this host",
     "Apptainer found no libraries of NVIDIA's driver on this host (--nv)",
     _DRIVER),
    (r"mount source (?P<path>\S+) doesn't exist",
     "{path} does not exist and cannot be mounted in the container",
     "run the command again, which stages it"),
    (r"root filesystem extraction failed[\s\S]*No space left on device",
     "the folder for temporary files is too small to unpack the .sif into",
     "free space there, or set APPTAINER_TMPDIR to a larger folder"),
)
# fmt: on
# Of one program, the most precise rows come first: one fault often causes several messages.
TABLE = (*TRITON, *DOCKER, *APPTAINER, *GENERAL, *TRITON_LAST)

# After these a server may keep running, but will never serve what was asked for.
_HOPELESS = ("failed to start ", "unable to find 'libtritoncache_local.so' for cache")
# Of one model; without it the server may serve the others.
_HOPELESS_FOR_ONE = (
    "failed to load '",
    "error while loading shared libraries",
    "failed to get the Python codec of the filesystem encoding",
    "Failed to import encodings module",
    "Poll failed for model directory",
    "what():  Resource temporarily unavailable",
)
# How pip, Apptainer, mksquashfs, cosign and apt begin the line that says why they failed, if it is
# not one that says only that they did.
_MARK = re.compile(
    r"(?:FATAL ERROR|FATAL|ERROR|Error|E)\s*:\s*(?:While performing build:\s*)?"
    r"(?!while executing starter|container cleanup failed)(?=\S)"
)
_UNMARKED = re.compile(r"(FATAL|ERROR|error|cannot|failed)\b")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def diagnose(text: str) -> LaunchError | None:
    """Return the error that the table finds in a program's output, or None."""
    for pattern, cause, remedy in TABLE:
        match = re.search(pattern, text)
        if match is not None:
            groups = {name: (value or "").strip() for name, value in match.groupdict().items()}
            whole = match[0].strip()
            return LaunchError(cause.format(whole, **groups), remedy.format(whole, **groups))
    return None


def is_hopeless(text: str, *, for_all: bool = False) -> bool:
    """Return whether a server's output shows that it is pointless to wait for it.

    With ``for_all``, also for the models that have nothing to do with the fault.
    """
    return any(words in text for words in (*_HOPELESS, *(() if for_all else _HOPELESS_FOR_ONE)))


def last_words(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip(" |+-\n")]
    return lines[-1] if lines else "it printed nothing"


def complaint(said: str) -> str:
    """Return why a program failed, in its own words; empty if it said nothing.

    That is the first line that it marked as an error, else the last that sounds like one, else the
    last.
    """
    lines = plain_lines(said)
    if any("No space left on device" in line for line in lines):
        return "no space left on device"
    marked = (line[mark.end() :] for line in lines if (mark := _MARK.match(line)) is not None)
    unmarked = (line.removeprefix("error: ") for line in lines[::-1] if _UNMARKED.search(line))
    return next(chain(marked, unmarked, lines[::-1]), "")[:300]


def plain_lines(said: str) -> list[str]:
    """Return the lines of a program's output, without colours, indentation and empty ones."""
    lines = (_COLOUR.sub("", line).strip() for line in said.splitlines())
    return [line for line in lines if line]
