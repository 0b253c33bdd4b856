"""What Docker and Apptainer say when they fail, and the cause that it stands for.

Those under RECORDED cannot be provoked here, see test_failures.py.
"""

Words = list[tuple[str, str]]

DOCKER: Words = [
    (
        'Conflict. The container name "/numlkit-0-ab-numl" is already in use by container "c327". '
        "You have to remove (or rename) that container to be able to reuse that name.",
        "a container named numlkit-0-ab-numl already exists",
    ),
    (
        "driver failed programming external connectivity on endpoint x (4e): Error starting "
        "userland proxy: listen tcp4 127.0.0.1:43395: bind: address already in use",
        "127.0.0.1:43395 was taken by another program while the container started",
    ),
    (
        "driver failed programming external connectivity on endpoint x (46): Bind for "
        "127.0.0.1:43395 failed: port is already allocated",
        "127.0.0.1:43395 was taken by another program while the container started",
    ),
    ("No such image: numlkit/numl:none", "the Docker engine has no image numlkit/numl:none"),
    (
        "failed to create shim task: OCI runtime create failed: runc create failed: unable to "
        "start container process: error during container init: error setting rlimits for ready "
        "process: error setting rlimit type 8: operation not permitted: unknown",
        "the container engine may not set a container's resource limits (ulimit): it has no "
        "CAP_SYS_RESOURCE, as when it runs in a container itself",
    ),
    (
        'could not select device driver "nvidia" with capabilities: [[gpu]]',
        "the Docker engine has no GPU runtime: the NVIDIA container toolkit is missing or not "
        "configured",
    ),
    (
        'invalid mount config for type "bind": bind source path does not exist: /no/such folder',
        "/no/such folder does not exist and cannot be mounted in the container",
    ),
    (
        "NanoCPUs can not be set, as your kernel does not support CPU CFS scheduler or the cgroup "
        "is not mounted",
        "the Docker engine cannot limit CPUs: the kernel has no cgroup for it",
    ),
    (
        "Range of CPUs is from 0.01 to 2.00, as there are only 2 CPUs available",
        "more CPUs are requested than this host's 2",
    ),
    (
        "failed to create shim task: OCI runtime create failed: runc create failed: unable to "
        'start container process: exec: "/no/such": stat /no/such: no such file or directory: '
        "unknown",
        "the image has no /no/such",
    ),
    (
        "exec /wait: exec format error",
        "a program in the image or environment was built for another processor than this host's",
    ),
    (
        "ApplyLayer exit status 1 stdout:  stderr: write /big: no space left on device",
        "disk full: /big cannot be written",
    ),
    (
        "driver failed programming external connectivity on endpoint x (46):  (iptables failed: "
        "iptables --wait -t nat -A DOCKER -p tcp -d 127.0.0.1 --dport 8000 -j DNAT: iptables: No "
        "chain/target/match by that name.\n (exit status 1))",
        "the Docker engine cannot publish ports: its firewall rules are gone",
    ),
    (
        "Error while fetching server API version: ('Connection aborted.', PermissionError(13, "
        "'Permission denied'))",
        "this user may not use the Docker engine",
    ),
    (
        "Error while fetching server API version: ('Connection aborted.', FileNotFoundError(2, "
        "'No such file or directory'))",
        "no Docker engine is running here",
    ),
    (
        "Error while fetching server API version: UnixHTTPConnectionPool(host='localhost', "
        "port=None): Read timed out. (read timeout=3)",
        "the Docker engine is running, but does not answer",
    ),
]

DOCKER_RECORDED: Words = [
    # docker/cli, and the SDK while an engine is stopped
    (
        "permission denied while trying to connect to the Docker daemon socket at unix:///x",
        "this user may not use the Docker engine",
    ),
    (
        "Cannot connect to the Docker daemon at unix:///x. Is the docker daemon running?",
        "no Docker engine is running here",
    ),
    (
        "('Connection aborted.', RemoteDisconnected('Remote end closed connection without "
        "response'))",
        "the Docker engine has stopped",
    ),
    (
        "UnixHTTPConnectionPool(host='localhost', port=None): Read timed out. (read timeout=10)",
        "the Docker engine is running, but does not answer",
    ),
    (
        "pull access denied for numlkit/numl, repository does not exist or may require login",
        "the Docker engine has no image numlkit/numl",
    ),
    # moby 28
    (
        "failed to set up container networking: driver failed programming external connectivity "
        "on endpoint x (d5): failed to bind host port for 127.0.0.1:8000:172.17.0.2:8000/tcp: "
        "address already in use",
        "127.0.0.1:8000 was taken by another program while the container started",
    ),
    # rootless engines; podman
    (
        "driver failed programming external connectivity on endpoint x (d5): Error starting "
        "userland proxy: listen tcp4 127.0.0.1:80: bind: permission denied",
        "the Docker engine may not listen on 127.0.0.1:80",
    ),
    (
        "OCI runtime error: crun: the requested cgroup controller `cpu` is not available",
        "the container engine cannot set limits: it has no cgroup controller cpu",
    ),
    (
        "OCI runtime create failed: runc create failed: unable to start container process: "
        "unable to apply cgroup configuration: failed to write 100000: openat2 "
        "/sys/fs/cgroup/user.slice/x/cpu.max: no such file or directory: unknown",
        "the container engine cannot set limits: it has no cgroup controller cpu.max",
    ),
    (
        "crun: setrlimit `RLIMIT_MEMLOCK`: Operation not permitted: OCI permission denied",
        "the container engine may not set a container's resource limits (ulimit): it has no "
        "CAP_SYS_RESOURCE, as when it runs in a container itself",
    ),
    (
        "Minimum memory limit allowed is 6MB",
        "less memory is requested than the engine's minimum, 6MB",
    ),
    # GPUs: moby 20.10, moby 29, podman, NVIDIA's toolkit
    (
        "Unknown runtime specified nvidia",
        "the Docker engine has no GPU runtime: the NVIDIA container toolkit is missing or not "
        "configured",
    ),
    (
        "failed to discover GPU vendor from CDI: no known GPU vendor found",
        "the container engine does not know that GPU: no CDI specification lists it",
    ),
    (
        "setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all",
        "the container engine does not know that GPU: no CDI specification lists it",
    ),
    (
        "nvidia-container-cli: initialization error: load library failed: libnvidia-ml.so.1: "
        "cannot open shared object file: no such file or directory: unknown",
        "the NVIDIA container toolkit finds no usable driver on this host: load library failed: "
        "libnvidia-ml.so.1: cannot open shared object file: no such file or directory",
    ),
    (
        "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.6, please "
        "update your driver to a newer version, or use an earlier cuda container: unknown",
        "NVIDIA's driver on this host is older than the image needs (cuda>=12.6)",
    ),
]

APPTAINER: Words = [
    (
        "FATAL:   While checking container encryption: could not open image /x/no.sif: image "
        "format not recognized",
        "/x/no.sif is not a .sif file",
    ),
    (
        "FATAL:   Failed to open image /x/no.sif: image format not recognized",
        "/x/no.sif is not a .sif file",
    ),
    (
        "ERROR:   No runscript and no /bin/sh executable found in container, aborting",
        "the .sif has no usable start script: it was not built by this kit",
    ),
    (
        "FATAL:   While checking container encryption: could not open image /x/y.sif: failed to "
        "retrieve path for /x/y.sif: lstat /x/y.sif: no such file or directory",
        "/x/y.sif: no such file",
    ),
    (
        "FATAL:   While checking container encryption: could not open image /x/a4.sif: the image's "
        "architecture (arm64) could not run on the host's (amd64)",
        "the .sif is for arm64 processors; this host's is amd64",
    ),
    (
        "FATAL:   container creation failed: mount hook function failure: mount /proc/self/fd/4->x "
        "error: while mounting image /proc/self/fd/4: kernel reported a bad superblock for "
        "squashfs image partition, possible causes are that your kernel doesn't support the "
        "compression algorithm or the image is corrupted",
        "the .sif is damaged or truncated",
    ),
    (
        "FATAL:   while reading /.singularity.d/runscript: read /.singularity.d/runscript: "
        "input/output error",
        "the .sif is damaged or truncated",
    ),
    (
        "FATAL:   exec /.singularity.d/runscript failed: fork/exec /.singularity.d/runscript: "
        "input/output error",
        "the .sif is damaged or truncated",
    ),
    (
        "FATAL:   container creation failed: image driver mount failure: image driver "
        "squashfuse_ll instance exited with error: squashfuse_ll exited: fuse: failed to open "
        "/dev/fuse: Permission denied",
        "this user may not open /dev/fuse, which Apptainer needs to mount a .sif",
    ),
    (
        "squashfuse_ll exited: fuse: mount failed: Invalid argument",
        "no usable /dev/fuse here, which Apptainer needs to mount a .sif without root",
    ),
    ("FATAL:   instance nk1 already exists", "an instance named nk1 already exists"),
    (
        "INFO   :   apptainer-suid, or compile with ./mconfig --with-suid\n"
        "ERROR  : Failed to create user namespace: maximum number of user namespaces exceeded, "
        "check /proc/sys/user/max_user_namespaces\n",
        "ordinary users may not create namespaces here, which Apptainer needs: maximum "
        "number of user namespaces exceeded, check /proc/sys/user/max_user_namespaces",
    ),
    (
        "FATAL:   container creation failed: while applying cgroups config: cannot use cgroups - "
        "cannot use systemd cgroups manager, systemd not running as init on this host",
        "Apptainer cannot limit CPUs or memory here: cannot use systemd cgroups manager, systemd "
        "not running as init on this host",
    ),
    (
        "FATAL:   container creation failed: mount hook function failure: mount /no/such->/tmp "
        "error: while mounting /no/such: mount source /no/such doesn't exist",
        "/no/such does not exist and cannot be mounted in the container",
    ),
    (
        "FATAL:   while extracting x.sif: root filesystem extraction failed: extract command "
        "failed: \nWrite on output file failed because No space left on device\n: exit status 1",
        "the folder for temporary files is too small to unpack the .sif into",
    ),
    (
        "FATAL:   exec /.singularity.d/runscript failed: fork/exec /.singularity.d/runscript: no "
        "such file or directory\n\nFATAL:   while executing starter: failed to start instance: "
        "exit status 255",
        "the .sif has no usable start script: it was not built by this kit",
    ),
]

APPTAINER_RECORDED: Words = [
    (
        "INFO:    Could not find any nv files on this host!",
        "Apptainer found no libraries of NVIDIA's driver on this host (--nv)",
    ),
    (
        "ERROR  : Failed to create mount namespace: mount namespace requires privileges, check "
        "Apptainer installation",
        "ordinary users may not create namespaces here, which Apptainer needs: mount "
        "namespace requires privileges, check Apptainer installation",
    ),
    (
        "ERROR  : Failed to create container process: No space left on device",
        "ordinary users may not create namespaces here, which Apptainer needs: No space "
        "left on device",
    ),
    (
        "squashfuse_ll exited: fuse: device not found, try 'modprobe fuse' first",
        "no usable /dev/fuse here, which Apptainer needs to mount a .sif without root",
    ),
    (
        "FATAL:   container creation failed: mount hook function failure: mount x error: while "
        "mounting image /proc/self/fd/4: failed to find loop device: no loop devices available",
        "Apptainer found no loop device to mount the .sif: no loop devices available",
    ),
]
