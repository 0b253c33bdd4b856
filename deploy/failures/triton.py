"""What Triton says when it does not start, does not load a model, or does not answer.

The patterns were seen with Triton 24.10.
"""

from __future__ import annotations

from deploy.failures.row import PORT_TAKEN, Failure, row

_MODEL = r"failed to load '(?P<model>[^']+)' version \d+: Internal: "
_WRONG_PYTHON = "the environment's Python must be the version that the stub is built for"
_FREE_SHM = "free space in /dev/shm (doctor.py --fix removes what dead servers have left)"
_REMAKE = "rm -r ~/.cache/numlkit/environments, then repeat the command: it is made anew"

TRITON: tuple[Failure, ...] = (
    row(
        # Triton goes on to say that the socket is in use, which it is not.
        r"Invalid private key|Invalid cert chain|Handshaker factory creation failed",
        "the server cannot use its certificate and private key for TLS",
        "python3 deploy/up.py with the same --tls-cert and --tls-key says what is wrong with them",
    ),
    row(
        r"failed to start (?P<service>\w+) service: .*?'(?P<where>[^']+)' already in use",
        "{where} " + PORT_TAKEN + " the server started ({service})",
        "repeat the command, or choose other ports with --ports HTTP,GRPC,METRICS",
    ),
    row(
        r"failed to start (?P<service>\w+) service: (?P<reason>[^\n]+)",
        "the server cannot offer its {service} service: {reason}",
        "other ports with --ports HTTP,GRPC,METRICS, or another --listen address",
    ),
    row(
        r"Unable to initialize shared memory key[^\n]*No space left on device"
        r"|Unable to (?:create|allocate) shared memory[^\n]*",
        "/dev/shm is too small for the model instances (1 MB for each at load)",
        f"{_FREE_SHM}, give the container more (--shm-size), or use fewer --instances",
    ),
    row(
        r"Failed to increase the shared memory pool size[^\n]*",
        "/dev/shm is full: a request's tensors do not fit",
        f"{_FREE_SHM}, or give the container more (--shm-size)",
    ),
    row(
        r"error while loading shared libraries: (?P<library>libpython[^:]+):",
        "the stub cannot find {library} of the execution environment",
        _REMAKE,
    ),
    row(
        r"error while loading shared libraries: (?P<library>[^:]+):",
        "the shared library {library} is missing",
        "install the system package that holds it",
    ),
    row(
        _MODEL + r'Failed to get the canonical path for (?P<path>[^\n"]+?)\.?"?(?:\n|$)',
        "model {model}: its execution environment {path} is not there",
        _REMAKE,
    ),
    row(
        r"archive_read_open_filename\(\) failed",
        "a packed execution environment is not a tar or tar.gz archive",
        "pack it again: tar.gz and plain tar are read, zst is not",
    ),
    row(
        r"archive_read_data_block\(\) failed with error code = -30",
        "a packed execution environment is cut off",
        "copy or pack it again and compare its sha256",
    ),
    row(
        r"archive_read_next_header\(\) failed",
        "a packed execution environment is damaged",
        "copy or pack it again and compare its sha256",
    ),
    row(
        r"archive_write_data_block\(\) failed[^\n]*",
        "/tmp is full: a packed execution environment is extracted there",
        "free space in /tmp (df -h /tmp; doctor.py --fix removes what dead servers have left), or "
        "use an unpacked environment",
    ),
    row(
        r"Path (?P<path>\S+/bin/activate) does not exist",
        "the execution environment has no {path}",
        "the environment's folder, or its archive's root, must hold bin/activate",
    ),
    row(
        r"ModuleNotFoundError: No module named 'numpy'",
        "the stub runs with an interpreter that has no numpy: not the execution environment's",
        _WRONG_PYTHON,
    ),
    row(
        # What numl_serving says when it finds itself in another environment than its own.
        _MODEL + r"ModelFilesError: wrong execution environment: (?P<found>.+?): check",
        "model {model} does not run in its execution environment: {found}",
        f"{_WRONG_PYTHON}; EXECUTION_ENV_PATH must name it",
    ),
    row(
        # The probe's words, not the log's: Triton has none for it.
        r"output \S+ is empty where its shape is [^\n]*",
        "{0}",
        "the execution environment needs numpy < 2 for this Triton (bin/pip show numpy)",
    ),
    row(
        r"ModuleNotFoundError: No module named '(?P<module>[^']+)'",
        "the execution environment lacks the Python package {module}, which a model imports",
        "add it to the environment's lock, or correct the import in model.py",
    ),
    row(
        r"(?:OSError|ImportError): (?P<library>lib[^\s:]+): cannot open shared object file",
        "the execution environment lacks the library {library}",
        "add the package that holds it (libmpi: mpich) to the environment's lock",
    ),
    row(
        r"AttributeError: module '[^']+' has no attribute 'TritonPythonModel'",
        "a model.py defines no class TritonPythonModel",
        "see model_repository/nugraph3/1/model.py for what is expected",
    ),
    row(
        _MODEL + r"Stub process '[^']+' is not healthy",
        "model {model}: its process ended while it initialised (exit, crash or out of memory)",
        "the log's last lines before that message say more; check free memory (free -g)",
    ),
    row(
        r"failed to load '(?P<model>[^']+)' version \d+: [^\n]*?"
        r"unable to find backend library for backend '(?P<backend>[^']+)'",
        "model {model} needs backend {backend}, which this Triton does not have",
        "--env packed --image with an image that has it: NVIDIA's has most",
    ),
    row(
        r"Failed to create environment directory for '(?P<path>[^']+)'",
        "a packed execution environment could not be unpacked, and so no other one can be",
        "free space in /tmp (df -h /tmp); the log's first message about an archive says more",
    ),
    row(
        r"has kind KIND_GPU but (?:no GPUs are available|server does not support GPUs)",
        "a model wants a GPU and the server sees none",
        "start it with --cpu, or check nvidia-smi on this host",
    ),
)

# What says that something failed, and not what.
TRITON_LAST: tuple[Failure, ...] = (
    row(
        r"failed to load '(?P<model>[^']+)' version \d+: (?P<kind>[\w ]+): "
        r"(?P<reason>.+?)(?:\\n|\n|\"?$)",
        "model {model} cannot be loaded: {reason}",
        "the log has the whole message",
    ),
    row(
        r"Poll failed for model directory '(?P<model>[^']+)': (?P<reason>[^\n]+)",
        "model {model}: {reason}",
        "correct its config.pbtxt or its folder",
    ),
    row(
        r"(?:creating server|failed to load all models|Internal - )[^\n]*",
        "the server did not start: {0}",
        "the log has the whole message",
    ),
)
