"""What the table makes of the words that programs were seen to say.

They are provoked in tests/integration/failed_starts (Triton) and in tests/containers/failures
(Docker 20.10, Apptainer 1.4.5).
"""

import time

import pytest

from deploy.host.failures import TABLE, complaint, diagnose, is_hopeless, last_words

Words = list[tuple[str, str]]

LOADING = "E1121 model_lifecycle.cc:642] \"failed to load 'nugraph3' version 1: "

# fmt: off
TRITON: Words = [
    ("/opt/tritonserver/bin/tritonserver: error while loading shared libraries: "
     "/opt/tritonserver/bin/../lib/libcudart.so: cannot read file data: Input/output error",
     "a file cannot be read (/opt/tritonserver/bin/../lib/libcudart.so: cannot read file data: "
     "Input/output error): the .sif or the disk is damaged"),
    ("/opt/numl/bin/serve: line 18: /opt/tritonserver/bin/tritonserver: Input/output error\n"
     "/opt/numl/bin/serve: line 18: /opt/tritonserver/bin/tritonserver: Success\n",
     "a file cannot be read (/opt/tritonserver/bin/tritonserver: Input/output error): the .sif "
     "or the disk is damaged"),
    (LOADING + "Internal: OSError: [Errno 5] Input/output error: '/opt/numl/env/x.py'\n\nAt:",
     "a file cannot be read ([Errno 5] Input/output error: '/opt/numl/env/x.py'): the .sif or "
     "the disk is damaged"),
    ("E1121 ssl_transport_security.cc] Invalid private key.\nE1121 main.cc] failed to start GRPC "
     "service: Unavailable - Socket '127.0.0.1:8001' already in use ",
     "the server cannot use its certificate and private key for TLS"),
    (LOADING
     + "Invalid argument: unable to find backend library for backend 'python', try specifying "
       "runtime on the model configuration.",
     "model nugraph3 cannot be loaded: Triton's own files are gone"),
    (LOADING + "Invalid argument: unable to find backend library for backend 'onnxruntime', try "
       "specifying runtime on the model configuration.",
     "model nugraph3 needs backend onnxruntime, which this Triton does not have"),
    ("error: creating server: Invalid argument - unable to find 'libtritoncache_local.so' for "
     "cache. Searched: /opt/tritonserver/caches\n",
     "this Triton has no response cache, which a model's configuration asks for"),
    ("Signal (11) received.\n 0# 0x55 in tritonserver\n 1# 0x7f in "
     "/opt/tritonserver/backends/python/libtriton_python.so\n",
     "the server crashed in its Python backend, as it does when a stub is of another release"),
    ("Signal (11) received.\n 0# 0x000056093C52752D in /triton/bin/tritonserver\n"
     " 1# 0x00007FAA9545A050 in /lib/x86_64-linux-gnu/libc.so.6\n"
     " 2# pthread_mutex_lock in /lib/x86_64-linux-gnu/libc.so.6\n"
     " 3# 0x000056093C58AE5B in /triton/bin/tritonserver\n",
     "Triton crashed on a request that its client gave up just as it was answered "
     "(triton-inference-server/server issue 7368)"),
    ("terminate called after throwing an instance of 'std::system_error'\n"
     "  what():  Resource temporarily unavailable\n",
     "the system refuses the server or a model another thread, which counts as a process"),
    (LOADING + "Internal: Failed to create environment directory for '/envs/a.tar.gz'.",
     "a packed execution environment could not be unpacked, which blocks all others"),
    ("E1121 main.cc] failed to start GRPC service: Unavailable - Socket '127.0.0.1:8001' already "
     "in use ", "127.0.0.1:8001 was taken by another program while the server started (GRPC)"),
    (LOADING + "Internal: Failed to get the canonical path for /no/such/env.",
     "model nugraph3: its execution environment /no/such/env does not exist"),
    (LOADING + 'Internal: archive_read_open_filename() failed."',
     "a packed execution environment is not a tar or tar.gz archive"),
    (LOADING + "Internal: ValueError: bad weights\\n\\nAt:\\n  /x/model.py(5): initialize\\n",
     "model nugraph3 cannot be loaded: ValueError: bad weights"),
    ("archive_read_data_block() failed with error code = -30",
     "a packed execution environment is truncated or damaged"),
    ("archive_read_next_header() failed with error code = -30 Damaged tar archive",
     "a packed execution environment is truncated or damaged"),
    ("archive_write_data_block() failed with error code = -25, Write failed",
     "/tmp is full: a packed execution environment is extracted there"),
    ("Path /tmp/python_env_ab/0/bin/activate does not exist. The Python environment",
     "the execution environment has no /tmp/python_env_ab/0/bin/activate"),
    ("  ]\nterminate called after throwing an instance of 'std::runtime_error'\n  what():  "
     "failed to get the Python codec of the filesystem encoding\n",
     "the stub's Python finds no standard library: not the execution environment's"),
    (LOADING + "Internal: ModuleNotFoundError: No module named '_struct'\n\nAt:\n",
     "the stub's Python finds no standard library: not the execution environment's"),
    (LOADING + "Internal: ModuleNotFoundError: No module named 'numpy'\n\nAt:\n",
     "the stub runs with an interpreter that has no numpy: not the execution environment's"),
    (LOADING + "Internal: ModuleNotFoundError: No module named 'numl_serving'\n",
     "the execution environment lacks the Python package numl_serving, which a model imports"),
    ("OSError: libmpi.so.12: cannot open shared object file: No such file or directory",
     "the execution environment lacks the library libmpi.so.12"),
    (LOADING + "Internal: AttributeError: module '1.model' has no attribute 'TritonPythonModel'",
     "a model.py defines no class TritonPythonModel"),
    ("terminate called after throwing an instance of 'boost::interprocess::lock_exception'\n  "
     "what():  boost::interprocess::lock_exception\n" + LOADING
     + 'Internal: Stub process \'nugraph3_0_0\' is not healthy."',
     "Triton crashed on a lock in its shared memory, which happens at random "
     "(triton-inference-server/server issue 8882)"),
    ('I1124 pb_stub.cc] "Failed to initialize Python stub: ValueError: bad weights\\n\\nAt:"\n'
     + LOADING + 'Internal: Stub process \'nugraph3_0_0\' is not healthy."',
     "model nugraph3 cannot be loaded: ValueError: bad weights"),
    ('I1124 pb_stub.cc] "Failed to initialize Python stub: ValueError: bad weights\\n\\nAt:"\n'
     'E1121 "failed to load \'another\' version 1: Internal: ValueError: bad weights\\n"\n'
     + LOADING + 'Internal: Stub process \'nugraph3_0_0\' is not healthy."',
     "model nugraph3: its process died during initialisation (exit, crash or out of memory)"),
    (LOADING + 'Internal: Stub process \'nugraph3_0_0\' is not healthy."',
     "model nugraph3: its process died during initialisation (exit, crash or out of memory)"),
    (LOADING
     + "Invalid argument: instance group nugraph3_0 of model nugraph3 has kind KIND_GPU but no "
       "GPUs are available", "a model needs a GPU and the server sees none"),
    (LOADING
     + "Internal: Unable to initialize shared memory key 'x' to requested size: No space left on "
       "device", "/dev/shm is too small for the model instances (1 MB for each at load)"),
    ("[500] Failed to increase the shared memory pool size for key 'x' to 2 bytes.",
     "/dev/shm is full: a request's tensors do not fit"),
    (LOADING
     + "Internal: ModelFilesError: wrong execution environment: /e is for Python 3.12.1, this is "
       "Python 3.11.7: check EXECUTION_ENV_PATH and that the stub's",
     "model nugraph3 is not running in its execution environment: /e is for Python 3.12.1, this "
     "is Python 3.11.7"),
    ("output y is empty where its shape is [3, 5], as when it has numpy 2",
     "output y is empty where its shape is [3, 5], as when it has numpy 2"),
    ("/x/triton_python_backend_stub: error while loading shared libraries: libpython3.11.so.1.0: "
     "cannot open shared object file: No such file or directory",
     "the stub cannot find the execution environment's libpython3.11.so.1.0"),
    ("E1121 main.cc] failed to start HTTP service: Internal - address not available",
     "the server cannot start its HTTP service: Internal - address not available"),
    ("tritonserver: error while loading shared libraries: libb64.so.0d: cannot open shared "
     "object file: No such file or directory", "the shared library libb64.so.0d is missing"),
    ("OSError: [Errno 28] No space left on device", "disk full: no space left on device"),
    ("E1121 model_repository_manager.cc] Poll failed for model directory 'echo': model input 'x' "
     "must specify dims", "model echo: model input 'x' must specify dims"),
    ("error: creating server: Internal - failed to load all models",
     "the server did not start: creating server: Internal - failed to load all models"),
]

DOCKER: Words = [
    ('Conflict. The container name "/numlkit-0-ab-numl" is already in use by container "c327". '
     "You have to remove (or rename) that container to be able to reuse that name.",
     "a container named numlkit-0-ab-numl already exists"),
    ("driver failed programming external connectivity on endpoint x (4e): Error starting "
     "userland proxy: listen tcp4 127.0.0.1:43395: bind: address already in use",
     "127.0.0.1:43395 was taken by another program while the container started"),
    ("driver failed programming external connectivity on endpoint x (46): Bind for "
     "127.0.0.1:43395 failed: port is already allocated",
     "127.0.0.1:43395 was taken by another program while the container started"),
    ("No such image: numlkit/numl:none", "the Docker engine has no image numlkit/numl:none"),
    ("failed to create shim task: OCI runtime create failed: runc create failed: unable to start "
     "container process: error during container init: error setting rlimits for ready process: "
     "error setting rlimit type 8: operation not permitted: unknown",
     "the container engine may not set a container's resource limits (ulimit): it has no "
     "CAP_SYS_RESOURCE, as when it runs in a container itself"),
    ('could not select device driver "nvidia" with capabilities: [[gpu]]',
     "the Docker engine has no GPU runtime: the NVIDIA container toolkit is missing or not "
     "configured"),
    ('invalid mount config for type "bind": bind source path does not exist: /no/such folder',
     "/no/such folder does not exist and cannot be mounted in the container"),
    ("NanoCPUs can not be set, as your kernel does not support CPU CFS scheduler or the cgroup "
     "is not mounted", "the Docker engine cannot limit CPUs: the kernel has no cgroup for it"),
    ("Range of CPUs is from 0.01 to 2.00, as there are only 2 CPUs available",
     "more CPUs are requested than this host's 2"),
    ("failed to create shim task: OCI runtime create failed: runc create failed: unable to start "
     'container process: exec: "/no/such": stat /no/such: no such file or directory: unknown',
     "the image has no /no/such"),
    ("exec /wait: exec format error",
     "a program in the image or environment was built for another processor than this host's"),
    ("ApplyLayer exit status 1 stdout:  stderr: write /big: no space left on device",
     "disk full: /big cannot be written"),
    ("driver failed programming external connectivity on endpoint x (46):  (iptables failed: "
     "iptables --wait -t nat -A DOCKER -p tcp -d 127.0.0.1 --dport 8000 -j DNAT: iptables: No "
     "chain/target/match by that name.\n (exit status 1))",
     "the Docker engine cannot publish ports: its firewall rules are gone"),
    ("Error while fetching server API version: ('Connection aborted.', PermissionError(13, "
     "'Permission denied'))", "this user may not use the Docker engine"),
    ("Error while fetching server API version: ('Connection aborted.', FileNotFoundError(2, 'No "
     "such file or directory'))", "no Docker engine is running here"),
    ("Error while fetching server API version: UnixHTTPConnectionPool(host='localhost', "
     "port=None): Read timed out. (read timeout=3)",
     "the Docker engine is running, but does not answer"),
]

APPTAINER: Words = [
    ("FATAL:   While checking container encryption: could not open image /x/no.sif: image format "
     "not recognized", "/x/no.sif is not a .sif file"),
    ("FATAL:   Failed to open image /x/no.sif: image format not recognized",
     "/x/no.sif is not a .sif file"),
    ("ERROR:   No runscript and no /bin/sh executable found in container, aborting",
     "the .sif has no usable start script: it was not built by this kit"),
    ("FATAL:   While checking container encryption: could not open image /x/y.sif: failed to "
     "retrieve path for /x/y.sif: lstat /x/y.sif: no such file or directory",
     "/x/y.sif: no such file"),
    ("FATAL:   While checking container encryption: could not open image /x/a4.sif: the image's "
     "architecture (arm64) could not run on the host's (amd64)",
     "the .sif is for arm64 processors; this host's is amd64"),
    ("FATAL:   container creation failed: mount hook function failure: mount /proc/self/fd/4->x "
     "error: while mounting image /proc/self/fd/4: kernel reported a bad superblock for squashfs "
     "image partition, possible causes are that your kernel doesn't support the compression "
     "algorithm or the image is corrupted", "the .sif is damaged or truncated"),
    ("FATAL:   while reading /.singularity.d/runscript: read /.singularity.d/runscript: "
     "input/output error", "the .sif is damaged or truncated"),
    ("FATAL:   exec /.singularity.d/runscript failed: fork/exec /.singularity.d/runscript: "
     "input/output error", "the .sif is damaged or truncated"),
    ("FATAL:   container creation failed: image driver mount failure: image driver squashfuse_ll "
     "instance exited with error: squashfuse_ll exited: fuse: failed to open /dev/fuse: "
     "Permission denied",
     "this user may not open /dev/fuse, which Apptainer needs to mount a .sif"),
    ("squashfuse_ll exited: fuse: mount failed: Invalid argument",
     "no usable /dev/fuse here, which Apptainer needs to mount a .sif without root"),
    ("FATAL:   instance nk1 already exists", "an instance named nk1 already exists"),
    ("INFO   :   apptainer-suid, or compile with ./mconfig --with-suid\nERROR  : Failed to "
     "create user namespace: maximum number of user namespaces exceeded, check "
     "/proc/sys/user/max_user_namespaces\n",
     "ordinary users may not create namespaces here, which Apptainer needs: maximum number of "
     "user namespaces exceeded, check /proc/sys/user/max_user_namespaces"),
    ("FATAL:   container creation failed: while applying cgroups config: cannot use cgroups - "
     "cannot use systemd cgroups manager, systemd not running as init on this host",
     "Apptainer cannot limit CPUs or memory here: cannot use systemd cgroups manager, systemd "
     "not running as init on this host"),
    ("FATAL:   container creation failed: mount hook function failure: mount /no/such->/tmp "
     "error: while mounting /no/such: mount source /no/such doesn't exist",
     "/no/such does not exist and cannot be mounted in the container"),
    ("FATAL:   while extracting x.sif: root filesystem extraction failed: extract command "
     "failed: \nWrite on output file failed because No space left on device\n: exit status 1",
     "the folder for temporary files is too small to unpack the .sif into"),
    ("FATAL:   exec /.singularity.d/runscript failed: fork/exec /.singularity.d/runscript: no "
     "such file or directory\n\nFATAL:   while executing starter: failed to start instance: exit "
     "status 255", "the .sif has no usable start script: it was not built by this kit"),
]
# fmt: on


@pytest.mark.parametrize(("text", "cause"), [*TRITON, *DOCKER, *APPTAINER])
def test_a_program_s_words_become_a_cause_and_a_remedy_in_one_line_each(text, cause):
    # Of a server it is one message among others; an engine says nothing else.
    found = diagnose(f"I1121 something else\n{text}\nI1121 and more\n")
    assert found.cause == cause
    assert found.remedy
    assert "\n" not in found.cause + found.remedy


def test_a_healthy_log_has_no_diagnosis():
    assert diagnose("I1121 \"successfully loaded 'nugraph3'\"\nI1121 Started HTTPService\n") is None


def test_every_row_has_a_remedy_that_is_not_its_cause():
    for _, cause, remedy in TABLE:
        assert remedy
        assert remedy != cause


@pytest.mark.parametrize(("said", "reason"), [
    ("\x1b[34mINFO:    Starting build...\x1b[0m\n"
     "\x1b[31mFATAL:   \x1b[0mWhile performing build: conveyor failed to get: no host\n",
     "conveyor failed to get: no host"),
    ("INFO:    a hint\nERROR:   container cleanup failed: no instance found\n"
     "FATAL:   container creation failed: the reason\n\n"
     "FATAL:   while executing starter: failed to start instance: exit status 255\n",
     "container creation failed: the reason"),
    ("Write failed because No space left on device\n"
     "FATAL ERROR: Failed to write to output filesystem\n", "no space left on device"),
    ("FATAL ERROR: Failed to read tar file x\nsome advice\n", "Failed to read tar file x"),
    ("mount: /x: permission denied.\n\n", "mount: /x: permission denied."),
    ("ERROR: Could not find a version that satisfies the requirement x==1\n"
     "ERROR: No matching distribution found for x==1\n",
     "Could not find a version that satisfies the requirement x==1"),
    ("Error: no signatures found\nmain.go:74: error during command execution",
     "no signatures found"),
    ("I: begins\nE: no mirror\nW: gave up\n", "no mirror"),
    ("reading x.ckpt\nerror: x.ckpt: not a checkpoint\n", "x.ckpt: not a checkpoint"),
    ("\x1b[91mERROR  : no\n", "no"),
    ("first\nlast\n", "last"),
    ("", ""),
])  # fmt: skip
def test_the_line_that_says_why_is_chosen(said, reason):
    assert complaint(said) == reason


def test_an_unbroken_line_of_any_length_is_looked_through_as_fast_as_it_is_read():
    def seconds(length: int) -> float:
        started = time.process_time()
        assert diagnose(("/" + 63 * "x") * (length // 64)) is None  # as base64 is
        return time.process_time() - started

    seconds(10_000)
    assert seconds(200_000) < 80 * seconds(10_000)  # if each slash began a look at the rest: 400


def test_last_words_are_those_that_say_something():
    assert last_words("first\nlast word\n+----+\n\n") == "last word"
    assert last_words("") == "it printed nothing"


def test_a_server_without_more_threads_or_the_cache_it_was_asked_for_is_not_waited_for():
    # Triton waits for the stub that ended by it until --timeout.
    assert is_hopeless("  what():  Resource temporarily unavailable")
    said = "Invalid argument: unable to find 'libtritoncache_local.so' for cache. Searched: /caches"
    assert is_hopeless(said, for_all=True)
