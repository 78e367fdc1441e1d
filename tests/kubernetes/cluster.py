"""A real Kubernetes cluster of one machine, in one privileged container: from etcd to the kubelet and containerd.

Everything is of Debian (build.py). What differs from a machine of its own is said where it is set: the file system and
the cgroups of a container, and a DNS that follows the endpoints, for Debian has no coredns.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.module_utils._lab.host import limits
from ansible_collections.torchfleet.cluster.plugins.module_utils._lab.image import bootstrap
from ansible_collections.torchfleet.cluster.plugins.module_utils._lab.podman import PODMAN, podman
from tests.kubernetes.build import TOOLS, build

NAME, STORE = "torchfleet-kubernetes", "torchfleet-kubernetes-store"
IMAGE, POD_IMAGE = "localhost/torchfleet-kubernetes:1", "localhost/torchfleet-pod:2"
PAUSE = "localhost/torchfleet-pause:1"
TOKEN = "torchfleet-kubernetes-lab"
ROLES = (
    "edit",
    "view",
    "no-logs",
)  # users of these names, with tokens of their own; they may nothing until a test binds the role
GATEWAY = "10.244.0.1"  # of the pods, and their DNS
PACKAGES = (
    *("etcd-server", "containerd", "runc", "iptables", "iproute2", "containernetworking-plugins", "dnsmasq-base"),
    *("catatonit", "conntrack", "socat", "mount", "openssl"),
)
KUBECONFIG = """apiVersion: v1
kind: Config
clusters: [{{name: lab, cluster: {{server: "https://{address}:6443", insecure-skip-tls-verify: true}}}}]
users: [{{name: lab, user: {{token: "{token}"}}}}]
contexts: [{{name: lab, context: {{cluster: lab, user: lab, namespace: default}}}}]
current-context: lab
"""
CONTAINERD = """version = 2
root = "/store/containerd"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      BinaryName = "/usr/local/bin/runc-here"
"""
# The cgroups of this machine may be hybrid, where a container cannot mount them: its pods do without.
RUNC = """#!/bin/sh
bundle=
previous=
for word; do
  [ "$previous" != --bundle ] || bundle=$word
  previous=$word
done
[ -z "$bundle" ] || python3 -c 'import json, sys
path = sys.argv[1] + "/config.json"
spec = json.load(open(path))
spec["mounts"] = [mount for mount in spec["mounts"] if mount["type"] != "cgroup"]
json.dump(spec, open(path, "w"))' "$bundle"
exec runc "$@"
"""
# It brings changed ConfigMaps into pods every 5 to 8 s (syncFrequency), and not every 60 to 90: tests wait for that.
# Logs are rotated at 1 MiB, and not at 10: a job that prints so much is then a short one.
KUBELET = """apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {{anonymous: {{enabled: true}}, webhook: {{enabled: false}}}}
authorization: {{mode: AlwaysAllow}}
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: []
failSwapOn: false
clusterDNS: ["{gateway}"]
clusterDomain: cluster.local
resolvConf: ""
evictionHard: {{nodefs.available: "1Mi", imagefs.available: "1Mi", memory.available: "1Mi"}}
imageGCHighThresholdPercent: 100
syncFrequency: 5s
containerLogMaxSize: 1Mi
containerLogMaxFiles: 2
"""
CNI = {
    "cniVersion": "0.4.0",
    "name": "lab",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "ipMasq": True,
            "hairpinMode": True,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.0.0/16"}]], "routes": [{"dst": "0.0.0.0/0"}]},
        },
        {"type": "loopback"},
    ],
}
# Names as coredns has them: host name, service and namespace of each endpoint; of a headless service its own name too.
DNS = """import json, os, ssl, time, urllib.request
context = ssl._create_unverified_context()
ask = urllib.request.Request("https://127.0.0.1:6443/api/v1/endpoints", headers={"Authorization": "Bearer TOKEN"})
old = None
while True:
    time.sleep(0.3)
    try:
        found = json.load(urllib.request.urlopen(ask, context=context, timeout=10))
    except OSError:
        continue
    lines = []
    for item in found["items"]:
        for subset in item.get("subsets") or []:
            for row in (subset.get("addresses") or []) + (subset.get("notReadyAddresses") or []):
                meta = item["metadata"]
                name = ".".join([meta["name"], meta["namespace"], "svc.cluster.local"])
                if row.get("hostname"):
                    lines.append(row["ip"] + " " + row["hostname"] + "." + name)
                if "service.kubernetes.io/headless" in meta.get("labels", {}):
                    lines.append(row["ip"] + " " + name)
    text = "".join(line + "\\n" for line in sorted(lines))
    if text != old:
        with open("/run/hosts.new", "w") as file:
            file.write(text)
        os.replace("/run/hosts.new", "/run/dns/pods")
        with open("/run/dnsmasq.pid") as file:
            os.kill(int(file.read()), 1)
        old = text
"""
SCHEDULING = ("--kubeconfig=/etc/kube/config", "--leader-elect=false")
SERVICES = {
    "etcd": ("etcd", "--data-dir=/store/etcd"),
    "apiserver": (
        *(
            "/opt/kube/kube-apiserver",
            "--etcd-servers=http://127.0.0.1:2379",
            "--service-cluster-ip-range=10.96.0.0/24",
        ),
        *("--cert-dir=/etc/kube", "--token-auth-file=/etc/kube/tokens.csv", "--authorization-mode=RBAC"),
        *("--anonymous-auth=false", "--allow-privileged=true", "--secure-port=6443"),
        *("--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file=/etc/kube/sa.pub"),
        *("--service-account-signing-key-file=/etc/kube/sa.key", "--kubelet-preferred-address-types=InternalIP"),
        "--feature-gates=TTLAfterFinished=true",
    ),
    "controllers": (
        *("/opt/kube/kube-controller-manager", *SCHEDULING, "--service-account-private-key-file=/etc/kube/sa.key"),
        "--feature-gates=TTLAfterFinished=true",
    ),
    "scheduler": ("/opt/kube/kube-scheduler", *SCHEDULING),
    "containerd": ("containerd", "--config=/etc/kube/containerd.toml"),
    "kubelet": (
        *("/opt/kube/kubelet", "--config=/etc/kube/kubelet.yml", "--kubeconfig=/etc/kube/config"),
        *("--container-runtime=remote", "--container-runtime-endpoint=unix:///run/containerd/containerd.sock"),
        *("--hostname-override=machine", "--root-dir=/store/kubelet", "--fail-swap-on=false"),
    ),
    "dnsmasq": (
        *("dnsmasq", "--keep-in-foreground", "--no-resolv", "--no-hosts", "--hostsdir=/run/dns", "--bind-dynamic"),
        *("--interface=cni0", "--pid-file=/run/dnsmasq.pid", "--user=root", "--addn-hosts=/run/dns/pods"),
    ),
    "names": ("python3", "/etc/kube/dns.py"),
}
UP_SECONDS = 300


class Cluster:
    """The cluster, while it is up. `place`: a directory for the kubeconfig; `shared`: directories that pods may see."""

    def __init__(self, place: Path, shared: tuple[Path, ...] = ()) -> None:
        self.place, self.shared = place, shared
        self.kubeconfig = place / "kubeconfig"
        self.kubectl = str(TOOLS / "usr" / "bin" / "kubectl")

    def up(self) -> None:
        """Make the cluster, and wait until its machine takes pods."""
        programs = build()
        make_images()
        self.down()
        mounts = [word for path in self.shared for word in ("--volume", f"{path}:{path}:ro")]
        words = ["--privileged", "--name", NAME, "--hostname", "machine", "--tmpfs", "/run:exec", *limits()]
        words += ["--volume", f"{STORE}:/store", "--volume", f"{programs}:/opt/kube:ro", *mounts]
        podman("run", "--detach", *words, IMAGE, "catatonit", "--", "sleep", "infinity")
        self.write_files()
        self.shell("mount --make-rshared /; test -e /dev/kmsg || mknod /dev/kmsg c 1 11")
        self.shell("mkdir -p /run/dns; touch /run/dns/pods")
        for name in ("etcd", "apiserver"):
            self.start(name)
        self.wait("the API", lambda: self.ask("get", "--raw=/readyz").returncode == 0)
        for name in ("controllers", "scheduler", "containerd"):
            self.start(name)
        self.wait("containerd", lambda: self.shell("ctr version", check=False).returncode == 0)
        for image in (PAUSE, POD_IMAGE):
            self.load(image)
        for name in ("kubelet", "dnsmasq", "names"):
            self.start(name)
        ready = "jsonpath={.items[0].status.conditions[?(@.type=='Ready')].status}"
        self.wait("the kubelet", lambda: self.ask("get", "nodes", f"--output={ready}").stdout == "True")
        self.wait("the account", lambda: self.ask("get", "serviceaccount", "default").returncode == 0)

    def write_files(self) -> None:
        """Write the configuration of all services, and the user's kubeconfig."""
        address = podman("inspect", "--format", "{{.NetworkSettings.IPAddress}}", NAME).strip()
        self.kubeconfig.write_text(KUBECONFIG.format(address=address, token=TOKEN))
        self.kubeconfig.chmod(0o600)
        files = {
            "/etc/kube/config": KUBECONFIG.format(address="127.0.0.1", token=TOKEN),
            "/etc/kube/tokens.csv": f"{TOKEN},admin,admin,system:masters\n"
            + "".join(f"{TOKEN}-{role},{role},{role}\n" for role in ROLES),
            "/etc/kube/containerd.toml": CONTAINERD.format(pause=PAUSE),
            "/etc/kube/kubelet.yml": KUBELET.format(gateway=GATEWAY),
            "/etc/kube/dns.py": DNS.replace("TOKEN", TOKEN),
            "/etc/cni/net.d/10-lab.conflist": json.dumps(CNI),
            "/usr/local/bin/runc-here": RUNC,
        }
        self.shell("mkdir -p /etc/kube /etc/cni/net.d")
        for path, text in files.items():
            self.shell(f"cat >{path}", given=text.encode())
        self.shell("chmod +x /usr/local/bin/runc-here; openssl genrsa -out /etc/kube/sa.key 2048")
        self.shell("openssl rsa -in /etc/kube/sa.key -pubout -out /etc/kube/sa.pub")

    def start(self, name: str) -> None:
        """Start a service; its output is in /run/<name>.log, its pid in /run/<name>.id."""
        # Ranks may be many more than this machine has cores, and a kubelet that is late is a lost machine. Pods inherit
        # their priority from containerd.
        priority = "" if name == "containerd" else "nice -n -19 "
        script = f'echo $$ >/run/{name}.id; exec {priority}"$0" "$@" >>/run/{name}.log 2>&1'
        podman("exec", "--detach", NAME, "sh", "-c", script, *SERVICES[name])

    def stop(self, name: str) -> None:
        """Kill a service."""
        self.shell(f"kill -9 $(cat /run/{name}.id)")

    def load(self, image: str) -> None:
        """Bring an image of podman into containerd."""
        with tempfile.NamedTemporaryFile(dir="/var/tmp") as file:
            podman("save", "--quiet", "--format", "docker-archive", "--output", file.name, image)
            with open(file.name, "rb") as archive:
                subprocess.run(
                    [*PODMAN, "exec", "--interactive", NAME, "ctr", "--namespace=k8s.io", "images", "import", "-"],
                    stdin=archive,
                    stdout=subprocess.DEVNULL,
                    check=True,
                )

    def shell(self, script: str, given: bytes = b"", check: bool = True) -> subprocess.CompletedProcess[bytes]:
        """Run a script in the machine."""
        words = [*PODMAN, "exec", "--interactive", NAME, "sh", "-c", script]
        return subprocess.run(words, input=given, capture_output=True, check=check)

    def ask(self, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        """Run kubectl as the user has it."""
        environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig)}
        return subprocess.run(
            [self.kubectl, *words], env=environment, input=given, capture_output=True, text=True, check=False
        )

    def wait(self, what: str, there: object, seconds: float = UP_SECONDS) -> None:
        """Wait until something is there."""
        until = time.monotonic() + seconds
        while not there():  # type: ignore[operator]
            if time.monotonic() > until:
                tails = self.shell("tail -n 3 /run/*.log", check=False).stdout.decode(errors="replace")
                raise TimeoutError(f"{what} did not come up in {seconds:.0f} s:\n{tails}")
            time.sleep(0.5)

    def down(self) -> None:
        """Remove the cluster."""
        podman("rm", "--force", "--time", "0", NAME, check=False)
        podman("volume", "rm", "--force", STORE, check=False)


def make_images() -> None:
    """Make the images of the machine, of pods and of what keeps a pod's network, unless they are there."""
    base = bootstrap("bookworm", "")
    if not exists(IMAGE):
        with tempfile.TemporaryDirectory() as folder:
            install = "apt-get update && apt-get install --yes --no-install-recommends " + " ".join(PACKAGES)
            clean = "apt-get clean && rm -rf /var/lib/apt/lists/*"
            Path(folder, "Containerfile").write_text(f"FROM {base}\nRUN {install} && {clean}\n")
            podman("build", "--tag", IMAGE, folder)
    if not exists(POD_IMAGE):
        with tempfile.TemporaryDirectory() as folder:
            # Claims are mounted below the home of this machine's user: any user of a pod may pass there.
            Path(folder, "Containerfile").write_text(f"FROM {base}\nRUN chmod 711 /root\n")
            podman("build", "--tag", POD_IMAGE, folder)
    if not exists(PAUSE):
        with tempfile.TemporaryDirectory() as folder:
            text = f"FROM {IMAGE} AS all\nFROM scratch\nCOPY --from=all /usr/bin/catatonit /catatonit\n"
            Path(folder, "Containerfile").write_text(text + 'ENTRYPOINT ["/catatonit", "-P"]\n')
            podman("build", "--tag", PAUSE, folder)


def exists(image: str) -> bool:
    return bool(podman("image", "inspect", "--format", "{{.Id}}", image, check=False))
