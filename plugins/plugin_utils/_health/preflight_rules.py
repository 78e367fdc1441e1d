# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What preflight can find: severity, title, why it matters, the source of that, and the command that mends it.

An id stays what it is once it is published: users ignore findings by id. docs/preflight.md has the same table.
"""

from __future__ import annotations

from collections.abc import Mapping

from . import drift
from .findings import Rule

INVENTORY: Mapping[str, Rule] = {
    "TF-INVENTORY": Rule(
        "error",
        "the inventory is no cluster",
        "a job needs one head, workers, and an address of its own for each of them",
        "docs/inventory.md",
        "edit the inventory: inventory/examples shows how",
    ),
    "TF-NAME-FIRST-LABEL": Rule(
        "error",
        "names that differ only after the first dot",
        "Open MPI 5 takes such hosts for one: all ranks run on one of them, and the exit status is 0",
        "measured with Open MPI 5.0.11",
        "give them names that differ before the first dot, and the address as ansible_host",
    ),
    "TF-ADDRESS-LOOPBACK": Rule(
        "error",
        "an address that leads every machine to itself",
        "the other nodes cannot reach this one by it",
        "RFC 1122, 3.2.1.3",
        "set ansible_host of {name} to its address in the network of the nodes; ansible_connection: local may stay",
    ),
}

REACH: Mapping[str, Rule] = {
    "TF-UNREACHABLE": Rule(
        "error",
        "the node does not answer",
        "nothing can be done on it",
        "Ansible",
        "is the machine up? ping {address}; then try: {login}; or set ansible_host of {name} to its right address",
    ),
    "TF-NAME-UNKNOWN": Rule(
        "error",
        "nobody knows an address for the name",
        "nothing can be done on the node",
        "ssh(1)",
        "set ansible_host of {name} to its address",
    ),
    "TF-SSH-PORT": Rule(
        "error",
        "nobody listens on this port",
        "the machine is there, but no SSH server on this port",
        "ssh(1)",
        "there, as root: sshd -T | grep ^port; then set ansible_port of {name}; or start it: {start_ssh}",
    ),
    "TF-SSH-CLOSED": Rule(
        "error",
        "the connection is closed before the login",
        "something else than SSH listens there, or sshd refuses to hear more at once",
        "sshd_config(5), MaxStartups; prrte#1493",
        "try: {login}; its reason stands in the journal there: journalctl -u ssh -u sshd",
    ),
    "TF-SSH-KEY": Rule(
        "error",
        "the login is refused",
        "the node does not take this user with this key",
        "ssh(1)",
        "bring your key there: {copy_key}; or name the right ansible_user and ansible_ssh_private_key_file",
    ),
    "TF-HOST-KEY-CHANGED": Rule(
        "error",
        "the host key is another than the known one",
        "the machine was made anew, or another one answers in its place; nothing is overwritten",
        "ssh(1), VERIFYING HOST KEYS",
        "compare on its console: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub; "
        "if it is right, here: ssh-keygen -R '{known_as}'; then: {login}",
    ),
    "TF-HOST-KEY-UNKNOWN": Rule(
        "error",
        "the host key is not known",
        "without it nobody can tell whether this is the right machine",
        "ssh(1), VERIFYING HOST KEYS",
        "log in once by hand and compare what is shown: {login}",
    ),
    "TF-NO-PYTHON": Rule(
        "error",
        "no Python",
        "whatever Ansible does on a node needs Python 3.8 or newer there",
        "ansible-core support matrix",
        "ansible {name} -b -m ansible.builtin.raw -a '{install_python}'; or set ansible_python_interpreter",
    ),
    "TF-PYTHON-OLD": Rule(
        "error",
        "Python is too old",
        "whatever Ansible does on a node needs Python 3.8 or newer there",
        "ansible-core support matrix",
        "install a newer Python on {name} and name it: ansible_python_interpreter: /usr/bin/python3.11",
    ),
    "TF-ANSIBLE-TMP": Rule(
        "error",
        "Ansible cannot write where it keeps its modules",
        "without pipelining each module is first written to a directory in the home of the user",
        "Ansible, remote_tmp",
        "in ansible.cfg, [ssh_connection]: pipelining = True; or give the user a home of its own that it can write",
    ),
    "TF-NO-ANSWER": Rule(
        "error",
        "the node can be reached, but tells nothing",
        "what cannot be looked at cannot be set up",
        "Ansible",
        "look closer: ansible {name} -m torchfleet.cluster.node_facts -vvv",
    ),
}

MACHINE: Mapping[str, Rule] = {
    "TF-OS-UNSUPPORTED": Rule(
        "error",
        "a system that nothing can be installed on",
        "the wheels of PyTorch and of the MPIs need Linux with glibc 2.28 or newer",
        "PEP 600, manylinux_2_28",
        "install Debian 12 or newer, or another distribution of its age",
    ),
    "TF-OS-UNTESTED": Rule(
        "warning",
        "a distribution that this was not run on",
        "it will probably work; nobody has tried",
        "README.md, what is proven",
        "if it works, add it: preflight_supported_os: [..., {os}]",
    ),
    "TF-ARCH-UNSUPPORTED": Rule(
        "error",
        "a processor that no wheel is made for",
        "PyTorch and the MPIs are installed as wheels for x86_64 and aarch64",
        "Python package index",
        "take another machine",
    ),
    "TF-PYTHON-TORCH": Rule(
        "error",
        "no wheel of PyTorch for this Python",
        "the environment of the ranks is made with it",
        "roles/pytorch, pytorch_python_min and pytorch_python_max",
        "install Python {python_min} to {python_max} and name it: pytorch_python: /usr/bin/python{python_min}",
    ),
    "TF-NO-VENV": Rule(
        "error",
        "Python that cannot make environments",
        "PyTorch and the MPIs are installed into environments of their own",
        "docs.python.org, venv: part of the standard library",
        "install a Python that has its whole standard library on {name} and name it: pytorch_python: /usr/bin/python3",
    ),
    "TF-NO-COMPILER": Rule(
        "error",
        "backend mpi is compiled, and no machine of this kind can",
        "it is built once for machines of a kind, for the MPIs and the PyTorch that they have",
        "roles/torch_backends",
        "on {name}, as root: {install_compiler}; or let Ansible ask for the password: -K; "
        "or: -e torch_backends_compile=false, which does without, more slowly",
    ),
    "TF-NO-SUDO": Rule(
        "error",
        "no root where it is needed",
        "what was chosen changes the system: packages, or sshd",
        "preflight_needs_root",
        "as root: visudo -f /etc/sudoers.d/{user}; with the line: {user} ALL=(ALL) NOPASSWD: ALL; "
        "or let Ansible ask for the password: -K",
    ),
    "TF-HOME-READONLY": Rule(
        "error",
        "torchfleet's home cannot be written",
        "everything that is installed, and every job, lies there",
        "docs/inventory.md",
        "mount it writable, or let {user} own it; or set torchfleet_home of {name} to another directory",
    ),
    "TF-HOME-NOEXEC": Rule(
        "error",
        "programs in torchfleet's home may not run",
        "Python and mpirun are installed there",
        "mount(8)",
        "on {name}, as root: mount -o remount,exec (and in /etc/fstab); or set torchfleet_home to another directory",
    ),
    "TF-HOME-SHARED": Rule(
        "error",
        "nodes share torchfleet's home",
        "each node writes its own fabric and jobs there: they would overwrite each other's",
        "docs/inventory.md",
        "give each node a directory of its own on a local disk, made as root: install -d -o USER /opt/torchfleet; "
        "and name it: torchfleet_home: /opt/torchfleet; not below /tmp or /var/tmp: systemd removes old files there",
    ),
    "TF-HOME-LOOSE": Rule(
        "error",
        "others can exchange what lies in torchfleet's home",
        "whoever does so has his code run by every job: Python and the launchers lie there",
        "sshd_config(5), StrictModes, has the same rule",
        "look whose it is: ls -ld {loose}; as root: chown {user} or chmod o-w, as it should be; "
        "or set torchfleet_home of {name} to a directory that only {user} can write to",
    ),
    "TF-DISK-HOME": Rule(
        "error",
        "too little room for what is installed",
        "an installation that fills the disk fails half-way, and a job loses its output",
        "measured: PyTorch for CPUs takes 1 GB; roles/pytorch: for GPUs 10 GB",
        "see what fills it: du -xh --max-depth=2 {near} | sort -h; or set torchfleet_home to a larger disk",
    ),
    "TF-DISK-TMP": Rule(
        "error",
        "too little room for temporary files",
        "pip unpacks there, and launchers keep their sessions there: Open MPI 5 fails with 213 and no text",
        "measured",
        "see what fills it: du -xh --max-depth=2 /tmp | sort -h; or let TMPDIR name another directory",
    ),
    "TF-SHM-FULL": Rule(
        "error",
        "/dev/shm is full",
        "launchers fail without saying why: MPICH with 7, Intel MPI with 255",
        "measured",
        "see whose files they are: ls -l /dev/shm; what an ended job left may go",
    ),
    "TF-SHM-SMALL": Rule(
        "warning",
        "/dev/shm is small",
        "NCCL and DataLoader workers keep their buffers there: No space left on device, or a bus error",
        "nccl#290, nccl#342",
        "of a container: --shm-size 1g, or --ipc=host; of a machine, as root: mount -o remount,size=8g /dev/shm",
    ),
    "TF-MEMORY-LOW": Rule(
        "warning",
        "little memory for the ranks",
        "the kernel ends a rank that runs out of memory with signal 9; with swap it crawls instead",
        "measured: a rank that has imported PyTorch takes 0.3 to 0.4 GB",
        "lower slots of {name}; or raise the limit of the control group: systemctl set-property user.slice MemoryMax=",
    ),
    "TF-MEMLOCK": Rule(
        "warning",
        "RDMA, and little memory may be locked",
        "ibv_reg_mr: Cannot allocate memory",
        "nccl-tests#206, ucx#8229",
        "as root, in /etc/security/limits.d/rdma.conf: * - memlock unlimited; then log in anew",
    ),
    "TF-NOFILE": Rule(
        "warning",
        "few open files",
        "each rank has a connection to each other one, and each DataLoader worker a few files",
        "PyTorch, multiprocessing: file_descriptor strategy",
        "as root, in /etc/security/limits.d/files.conf: * - nofile 65536; then log in anew",
    ),
    "TF-NPROC": Rule(
        "warning",
        "few processes",
        "each rank has a thread per core, and more for its libraries",
        "setrlimit(2), RLIMIT_NPROC counts threads",
        "as root, in /etc/security/limits.d/processes.conf: * - nproc 32768; then log in anew",
    ),
    "TF-CLOCK-SKEW": Rule(
        "error",
        "the clock is off",
        "certificates are not valid yet or no more, package indexes refuse, and which rank failed first is wrong",
        "ssh-keygen(1), -V; RFC 5280",
        "on {name}, as root: timedatectl set-ntp true (needs systemd-timesyncd or chrony)",
    ),
    "TF-HOSTNAME-LOOPBACK": Rule(
        "warning",
        "the host name leads to the node itself",
        "Gloo tells other ranks that address: connectFullMesh fails. Jobs of torchfleet name the NIC and are safe",
        "measured; aws-do-eks#69",
        "in /etc/hosts of {name}, instead of the line with 127.0.1.1: {address} {hostname}",
    ),
    "TF-HOSTNAME-UNRESOLVED": Rule(
        "warning",
        "the host name has no address",
        "Gloo falls back to the loopback address. Jobs of torchfleet name the NIC and are safe",
        "PyTorch, ProcessGroupGloo::createDefaultDevice",
        "in /etc/hosts of {name}: {address} {hostname}",
    ),
    "TF-MAXSTARTUPS": Rule(
        "warning",
        "sshd refuses logins at random when all nodes come at once",
        "beyond the first number it drops connections: ssh_exchange_identification, Connection closed",
        "sshd_config(5); prrte#1493; measured: of 60 logins at once 36 got in",
        "as root, in /etc/ssh/sshd_config.d/startups.conf: MaxStartups {count}:30:{full}; then {reload_ssh}",
    ),
    "TF-PORTS-BUSY": Rule(
        "error",
        "hardly a port is free",
        "each job listens on a port of this range",
        "plugins/module_utils/_runtime/survey.py, PORTS",
        "see who listens: ss -tlnp",
    ),
    "TF-PORT-RANGE": Rule(
        "warning",
        "outgoing connections may take the port of a job first",
        "the port of a job is chosen before rank 0 listens on it",
        "ip(7), ip_local_port_range",
        "as root: sysctl -w net.ipv4.ip_local_port_range='32768 60999' (and in /etc/sysctl.d)",
    ),
    "TF-FIREWALL": Rule(
        "warning",
        "a firewall",
        "MPI, NCCL and Gloo connect on ports that nobody knows before: they hang",
        "ompi#4886, nccl#388",
        "let the nodes reach each other on all ports: ufw allow from NETWORK; "
        "or: firewall-cmd --permanent --zone=trusted --add-source=NETWORK; and: firewall-cmd --reload",
    ),
    "TF-NO-SSH": Rule(
        "error",
        "no SSH client on the head",
        "the head starts the ranks of the workers over SSH",
        "docs/how-a-job-ends.md",
        "on {name}, as root: {install_ssh_client}",
    ),
    "TF-GPU-NO-DRIVER": Rule(
        "warning",
        "GPUs that no driver drives",
        "jobs run on the processor alone, and backend nccl is refused",
        "Linux, sysfs: /sys/bus/pci/devices/*/driver",
        "have the driver installed, with -e accelerators for setup.yml as docs/gpu-drivers.md tells; "
        "or reboot {name}, if it was",
    ),
    "TF-NVIDIA-MISMATCH": Rule(
        "error",
        "NVIDIA's library is of another version than the loaded module",
        "no program can use the GPUs: Driver/library version mismatch. An upgrade did that",
        "NVML, NVML_ERROR_LIB_RM_VERSION_MISMATCH",
        "reboot {name}; then hold the version: {hold_driver}",
    ),
}

TOGETHER: Mapping[str, Rule] = {
    "TF-SAME-MACHINE": Rule(
        "error",
        "one machine under several names",
        "its cores and GPUs would be given out twice, and Open MPI 5 fails to map",
        "measured with Open MPI 5.0.11: exit status 213",
        "list each machine once: several ranks on it are its slots",
    ),
    "TF-SAME-HOST-KEY": Rule(
        "error",
        "machines with the same host key",
        "each can pose as the other, and whoever reads one image has the key of all",
        "ssh(1), VERIFYING HOST KEYS",
        "on all but one, as root: rm /etc/ssh/ssh_host_*; ssh-keygen -A; {restart_ssh}",
    ),
    "TF-SAME-MACHINE-ID": Rule(
        "warning",
        "machines with the same machine id",
        "they ask DHCP for the same address, and their journals are taken for one",
        "machine-id(5)",
        "on all but one, as root: rm /etc/machine-id; systemd-machine-id-setup; reboot",
    ),
    "TF-SAME-HOSTNAME": Rule(
        "error",
        "machines with the same host name",
        "launchers tell nodes apart by their host names",
        "ompi#4732, prrte#965",
        "on each, as root: hostnamectl set-hostname NAME",
    ),
}

RULES: Mapping[str, Rule] = {**INVENTORY, **REACH, **MACHINE, **TOGETHER, **drift.RULES}
