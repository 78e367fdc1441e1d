# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The rules of preflight: severity, title, why it matters, the source, and the commands that fix it.

A published id never changes: users ignore findings by id. docs/preflight.md has the same table.
"""

from __future__ import annotations

from collections.abc import Mapping

from . import drift
from .findings import Rule

INVENTORY: Mapping[str, Rule] = {
    "TF-INVENTORY": Rule(
        "error",
        "the inventory does not describe a cluster",
        "a job needs one head, at least one worker, and a different address for each node",
        "docs/inventory.md",
        "edit the inventory, as in inventory/examples",
    ),
    "TF-NAME-FIRST-LABEL": Rule(
        "error",
        "node names differ only after the first dot",
        "Open MPI 5 treats such hosts as one: all ranks run on one of them, and the exit status is 0",
        "measured with Open MPI 5.0.11",
        "give the nodes names that differ before the first dot, and set their addresses as ansible_host",
    ),
    "TF-ADDRESS-LOOPBACK": Rule(
        "error",
        "the address is a loopback address",
        "on every node it means the node itself, so the others cannot reach this one",
        "RFC 1122, 3.2.1.3",
        "set ansible_host of {name} to its address in the nodes' network; ansible_connection: local may stay",
    ),
    "TF-FABRIC-ASKED": Rule(
        "error",
        "the nodes do not have the network or the rails that are asked for",
        "role fabric refuses it too, but then packages, keys and firewalls are changed already",
        "docs/nics.md",
        "correct fabric_subnet, fabric_nic, fabric_address or fabric_rdma, or leave them out",
    ),
}

REACH: Mapping[str, Rule] = {
    "TF-UNREACHABLE": Rule(
        "error",
        "the node does not answer",
        "Ansible cannot set up a node that it cannot reach",
        "Ansible",
        "check that the machine is up: ping {address}; then try: {login}; or correct ansible_host of {name}",
    ),
    "TF-NAME-UNKNOWN": Rule(
        "error",
        "the name has no address",
        "Ansible cannot set up a node that it cannot reach",
        "ssh(1)",
        "set ansible_host of {name} to its address",
    ),
    "TF-SSH-PORT": Rule(
        "error",
        "nothing listens on this port",
        "the machine is up, but no SSH server listens on this port",
        "ssh(1)",
        "on {name}, as root: sshd -T | grep ^port; then set ansible_port of {name}; or start the server: {start_ssh}",
    ),
    "TF-SSH-CLOSED": Rule(
        "error",
        "the connection is closed before the login",
        "another program listens on this port, or sshd accepts no more connections at the moment",
        "sshd_config(5), MaxStartups; prrte#1493",
        "try: {login}; the journal of the node shows the reason: journalctl -u ssh -u sshd",
    ),
    "TF-SSH-KEY": Rule(
        "error",
        "the login is refused",
        "the node does not accept this user with this key",
        "ssh(1)",
        "copy your key to the node: {copy_key}; or correct ansible_user and ansible_ssh_private_key_file",
    ),
    "TF-HOST-KEY-CHANGED": Rule(
        "error",
        "the host key has changed",
        "the machine was reinstalled, or another machine answers in its place; known_hosts is not overwritten",
        "ssh(1), VERIFYING HOST KEYS",
        "on the console of the node, compare the key: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub; "
        "if it is right: ansible-playbook playbooks/host_keys.yml -e replace={name}; "
        "or, on this machine: ssh-keygen -R '{known_as}'; then: {login}",
    ),
    "TF-HOST-KEY-UNKNOWN": Rule(
        "error",
        "the host key is not known",
        "SSH cannot check that it talks to the right machine",
        "ssh(1), VERIFYING HOST KEYS",
        "compare and save the keys of all nodes: ansible-playbook playbooks/host_keys.yml; "
        "or log in once by hand and compare the fingerprint: {login}",
    ),
    "TF-NO-PYTHON": Rule(
        "error",
        "Python is not installed",
        "Ansible's modules need Python 3.8 or newer on the node",
        "ansible-core support matrix",
        "ansible {name} -b -m ansible.builtin.raw -a '{install_python}'; or set ansible_python_interpreter",
    ),
    "TF-PYTHON-OLD": Rule(
        "error",
        "Python is too old",
        "Ansible's modules need Python 3.8 or newer on the node",
        "ansible-core support matrix",
        "install a newer Python on {name} and set it: ansible_python_interpreter: /usr/bin/python3.11; "
        "RHEL 8 is not supported, whatever its Python: docs/distributions.md",
    ),
    "TF-ANSIBLE-TMP": Rule(
        "error",
        "Ansible cannot write its temporary files",
        "without pipelining, Ansible writes each module to a directory in the user's home before it runs it",
        "Ansible, remote_tmp",
        "in ansible.cfg, [ssh_connection]: pipelining = True; or give the user a writable home of its own",
    ),
    "TF-SLOW": Rule(
        "error",
        "the node answers too slowly",
        "it is overloaded, or a file system or name service of it hangs; each step of setup would take as long",
        "preflight_timeout",
        "see what it is busy with: {login}; or give every node more time: -e preflight_timeout=300",
    ),
    "TF-NO-ANSWER": Rule(
        "error",
        "the node is reachable, but its facts cannot be read",
        "a node without facts cannot be checked or set up",
        "Ansible",
        "see the whole error: ansible {name} -m torchfleet.cluster.node_facts -vvv",
    ),
}

MACHINE: Mapping[str, Rule] = {
    "TF-OS-UNSUPPORTED": Rule(
        "error",
        "the operating system is not supported",
        "the wheels of PyTorch and of the MPIs need Linux with glibc 2.28 or newer",
        "PEP 600, manylinux_2_28",
        "install Debian 12 or newer, or another distribution of that age",
    ),
    "TF-OS-OLD": Rule(
        "error",
        "this release of the distribution is too old",
        "RHEL 8 has Python 3.6, on which Ansible's modules do not run, and an sshd that reads no drop-ins",
        "docs/distributions.md",
        "install release {oldest} or newer",
    ),
    "TF-OS-UNTESTED": Rule(
        "warning",
        "torchfleet was not tested on this distribution",
        "it will probably work",
        "README.md, what is proven",
        "if setup works, add the distribution: preflight_supported_os: [..., {os}]",
    ),
    "TF-ARCH-UNSUPPORTED": Rule(
        "error",
        "the processor is not supported",
        "PyTorch and the MPIs are installed as wheels for x86_64 and aarch64",
        "Python package index",
        "use another machine",
    ),
    "TF-PYTHON-TORCH": Rule(
        "error",
        "PyTorch has no wheel for this Python",
        "the ranks' environment is created with this Python",
        "roles/pytorch, pytorch_python_min and pytorch_python_max",
        "install Python {python_min} to {python_max} and set it: pytorch_python: /usr/bin/python{python_min}; "
        "or have setup.yml bring one: -e prerequisites_python=auto",
    ),
    "TF-NO-VENV": Rule(
        "error",
        "Python has no module venv",
        "PyTorch and the MPIs are installed into environments of their own",
        "docs.python.org, venv: part of the standard library",
        "on {name}, install a Python with its whole standard library and set it: pytorch_python: /usr/bin/python3",
    ),
    "TF-NO-COMPILER": Rule(
        "error",
        "no machine of this kind can compile backend mpi",
        "backend mpi is compiled on one machine of each kind, for the MPIs and the PyTorch installed there",
        "roles/torch_backends",
        "on {name}, as root: {install_compiler}; or let Ansible ask for the password: -K; "
        "or take what was built elsewhere: -e torch_backends_wheel=FILE",
    ),
    "TF-NO-SUDO": Rule(
        "error",
        "the user cannot become root",
        "the chosen parts of setup change the system: packages, or sshd",
        "preflight_needs_root",
        "as root: visudo -f /etc/sudoers.d/{user}; add the line: {user} ALL=(ALL) NOPASSWD: ALL; "
        "or let Ansible ask for the password: -K",
    ),
    "TF-HOME-READONLY": Rule(
        "error",
        "torchfleet's home is not writable",
        "all software and all jobs are stored there",
        "docs/inventory.md",
        "mount it writable, or make {user} its owner; or set torchfleet_home of {name} to another directory",
    ),
    "TF-HOME-NOEXEC": Rule(
        "error",
        "programs in torchfleet's home cannot run",
        "Python and mpirun are installed there",
        "mount(8)",
        "on {name}, as root: mount -o remount,exec (and in /etc/fstab); or set torchfleet_home to another directory",
    ),
    "TF-HOME-SHARED": Rule(
        "error",
        "nodes share torchfleet's home",
        "each node stores its own fabric and jobs there, and would overwrite those of the other nodes",
        "docs/inventory.md",
        "give each node a directory on its own disk, as root: install -d -o USER /opt/torchfleet; "
        "and set it: torchfleet_home: /opt/torchfleet; not below /tmp or /var/tmp: systemd removes old files there",
    ),
    "TF-HOME-LOOSE": Rule(
        "error",
        "other users can replace files in torchfleet's home",
        "every job runs Python and the launchers from there, and so would run the code of those users",
        "sshd_config(5), StrictModes, has the same rule",
        "show owner and mode: ls -ld {loose}; as root: chown {user} or chmod o-w; "
        "or set torchfleet_home of {name} to a directory that only {user} can write to",
    ),
    "TF-DISK-HOME": Rule(
        "error",
        "too little free disk space in torchfleet's home",
        "on a full disk an installation fails half-way, and a job loses its output",
        "measured: PyTorch for CPUs takes 1 GB; roles/pytorch: for GPUs 10 GB",
        "see what fills the disk: du -xh --max-depth=2 {near} | sort -h; or set torchfleet_home to a larger disk",
    ),
    "TF-DISK-TMP": Rule(
        "error",
        "too little free disk space for temporary files",
        "pip unpacks packages there, and launchers store sessions: Open MPI 5 fails with status 213 and no message",
        "measured",
        "see what fills it: du -xh --max-depth=2 /tmp | sort -h; or set TMPDIR to another directory",
    ),
    "TF-SHM-FULL": Rule(
        "error",
        "/dev/shm is full",
        "launchers fail without a message: MPICH with status 7, Intel MPI with 255",
        "measured",
        "see whose files these are: ls -l /dev/shm; files of ended jobs can be removed",
    ),
    "TF-SHM-SMALL": Rule(
        "warning",
        "/dev/shm is small",
        "NCCL and DataLoader workers store buffers there; they fail with No space left on device or a bus error",
        "nccl#290, nccl#342",
        "for a container: --shm-size 1g, or --ipc=host; for a machine, as root: mount -o remount,size=8g /dev/shm",
    ),
    "TF-MEMORY-LOW": Rule(
        "warning",
        "too little memory for the ranks",
        "if memory runs out, the kernel kills a rank with signal 9; with swap, the rank becomes very slow instead",
        "measured: a rank that has imported PyTorch takes 0.3 to 0.4 GB",
        "lower the slots of {name}; or raise the control group's limit: systemctl set-property user.slice MemoryMax=",
    ),
    "TF-MEMLOCK": Rule(
        "warning",
        "the limit of locked memory is too low for RDMA",
        "RDMA fails with ibv_reg_mr: Cannot allocate memory",
        "nccl-tests#206, ucx#8229",
        "as root, in /etc/security/limits.d/rdma.conf: * - memlock unlimited; then log in again",
    ),
    "TF-RDMA-LIBRARIES": Rule(
        "warning",
        "the libraries of the RDMA devices are missing",
        "without them NCCL and UCX do not find the devices, and use TCP",
        "rdma-core",
        "as root: {install_rdma}",
    ),
    "TF-NOFILE": Rule(
        "warning",
        "the limit of open files is low",
        "each rank opens a connection to every other rank, and each DataLoader worker opens a few files",
        "PyTorch, multiprocessing: file_descriptor strategy",
        "as root, in /etc/security/limits.d/files.conf: * - nofile 65536; then log in again",
    ),
    "TF-NPROC": Rule(
        "warning",
        "the limit of processes is low",
        "threads count too: each rank has one per core, and its libraries have more",
        "setrlimit(2), RLIMIT_NPROC counts threads",
        "as root, in /etc/security/limits.d/processes.conf: * - nproc 32768; then log in again",
    ),
    "TF-CLOCK-SKEW": Rule(
        "error",
        "the clock is wrong",
        "certificates seem expired or not yet valid, package indexes refuse, and the wrong rank may be blamed",
        "ssh-keygen(1), -V; RFC 5280",
        "on {name}, as root: timedatectl set-ntp true (needs systemd-timesyncd or chrony)",
    ),
    "TF-HOSTNAME-LOOPBACK": Rule(
        "warning",
        "the host name resolves to a loopback address",
        "Gloo gives that address to the other ranks: connectFullMesh fails. torchfleet's jobs set the NIC and are safe",
        "measured; aws-do-eks#69",
        "in /etc/hosts of {name}, instead of the line with 127.0.1.1: {address} {hostname}",
    ),
    "TF-HOSTNAME-UNRESOLVED": Rule(
        "warning",
        "the host name has no address",
        "Gloo falls back to the loopback address. torchfleet's jobs set the NIC and are safe",
        "PyTorch, ProcessGroupGloo::createDefaultDevice",
        "in /etc/hosts of {name}: {address} {hostname}",
    ),
    "TF-MAXSTARTUPS": Rule(
        "warning",
        "sshd drops logins at random when all nodes log in at once",
        "above the first number of MaxStartups, sshd drops connections: ssh_exchange_identification, Connection closed",
        "sshd_config(5); prrte#1493; measured: of 60 logins at once 36 got in",
        "as root, in /etc/ssh/sshd_config.d/startups.conf: MaxStartups {count}:30:{full}; then {reload_ssh}",
    ),
    "TF-PORTS-BUSY": Rule(
        "error",
        "almost no port is free",
        "each job listens on a port of this range",
        "plugins/module_utils/_runtime/nodes/survey.py, PORTS",
        "see which programs listen: ss -tlnp",
    ),
    "TF-PORT-RANGE": Rule(
        "warning",
        "outgoing connections may use a job's port",
        "a job's port is chosen before rank 0 listens on it; until then an outgoing connection can take it",
        "ip(7), ip_local_port_range",
        "as root: sysctl -w net.ipv4.ip_local_port_range='32768 60999' (and in /etc/sysctl.d)",
    ),
    "TF-FIREWALL": Rule(
        "warning",
        "a firewall is active",
        "MPI, NCCL and Gloo connect on ports that are not known in advance; if the firewall blocks them, they hang",
        "ompi#4886, nccl#388",
        "ansible-playbook setup.yml -e firewall_open=true, which needs root; "
        "or by hand, as root, for the address of each other node: {by_hand}",
    ),
    "TF-NO-SSH": Rule(
        "error",
        "the head has no SSH client",
        "the head starts the ranks of the workers over SSH",
        "docs/how-a-job-ends.md",
        "on {name}, as root: {install_ssh_client}",
    ),
    "TF-GPU-NO-DRIVER": Rule(
        "warning",
        "GPUs have no driver",
        "jobs run on the CPU only, and backend nccl is refused",
        "Linux, sysfs: /sys/bus/pci/devices/*/driver",
        "install the driver, with -e accelerators for setup.yml (docs/gpu-drivers.md); "
        "or, if it is installed, reboot {name}",
    ),
    "TF-NVIDIA-MISMATCH": Rule(
        "error",
        "NVIDIA's library and the loaded kernel module have different versions",
        "no program can use the GPUs: Driver/library version mismatch. The cause is an upgrade without a reboot",
        "NVML, NVML_ERROR_LIB_RM_VERSION_MISMATCH",
        "reboot {name}; then prevent further upgrades: {hold_driver}",
    ),
}

TOGETHER: Mapping[str, Rule] = {
    "TF-SAME-MACHINE": Rule(
        "error",
        "several names mean the same machine",
        "jobs would use its cores and GPUs twice, and Open MPI 5 fails to map the ranks",
        "measured with Open MPI 5.0.11: exit status 213",
        "list each machine once; set its slots for several ranks",
    ),
    "TF-SAME-HOST-KEY": Rule(
        "error",
        "machines have the same host key",
        "each machine can pose as the others, and anyone who can read the image has the key of all",
        "ssh(1), VERIFYING HOST KEYS",
        "on all but one, as root: rm /etc/ssh/ssh_host_*; ssh-keygen -A; {restart_ssh}",
    ),
    "TF-SAME-MACHINE-ID": Rule(
        "warning",
        "machines have the same machine id",
        "they request the same address from DHCP, and their journals cannot be told apart",
        "machine-id(5)",
        "on all but one, as root: rm /etc/machine-id; systemd-machine-id-setup; reboot",
    ),
    "TF-SAME-HOSTNAME": Rule(
        "error",
        "machines have the same host name",
        "launchers distinguish nodes by their host names",
        "ompi#4732, prrte#965",
        "on each machine, as root: hostnamectl set-hostname NAME",
    ),
}

RULES: Mapping[str, Rule] = {**INVENTORY, **REACH, **MACHINE, **TOGETHER, **drift.RULES}
