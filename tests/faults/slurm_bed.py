"""Four lab nodes with Slurm for the fault matrix, and a Slurm job of the same user on n1 and n2 that must live."""

from __future__ import annotations

from tests.driver import wait_until
from tests.faults.bed import CROWDED, NODES, Bed
from tests.lab import slurm

BESIDE = "faults-beside"  # the name of those jobs in Slurm
JOBS_PER_CORE = 2  # one beside that of the cell


class SlurmBed(Bed):
    """The bed of Slurm's launchers. Its nodes have one user and one home: Slurm wants that."""

    up = False

    def mend(self) -> None:
        """Make the nodes as good as new, Slurm with them, and start the bystanders that are missing."""
        super().mend()
        if not self.up:
            slurm.bring_up(self.lab, NODES, jobs_per_core=JOBS_PER_CORE)
            self.up = True
        self.wake()
        for node in CROWDED:
            if not self.beside_in_slurm(node):
                self.submit(node)

    def wake(self) -> None:
        """Start what does not run of Slurm, have it take back nodes that it gave up, wait until all take jobs."""
        self.resume()
        slurm.wake(self.lab, NODES)

    def resume(self) -> None:
        """Have Slurm take back nodes that it gave up, as their administrator does; it refuses where there is none."""
        names = ",".join(slurm.name_of(self.lab, node) for node in NODES)
        self.lab.root("n1", "scontrol", "update", f"NodeName={names}", "State=RESUME", check=False)

    def submit(self, node: str) -> None:
        """Start the Slurm job of a node that must live: one core."""
        asked = ["--uid=fleet", "--gid=fleet", "--chdir=/", "--output=/dev/null", "--ntasks=1", "--no-requeue"]
        self.lab.root(
            "n1", "sbatch", *asked, f"--nodelist={node}", f"--job-name={BESIDE}-{node}", "--wrap", "exec sleep 1000000"
        )
        wait_until(lambda: self.beside_in_slurm(node))

    def bystanders(self) -> dict[str, list[int]]:
        """Return also the processes of Slurm's jobs."""
        return {**super().bystanders(), **{f"Slurm job on {node}": self.beside_in_slurm(node) for node in CROWDED}}

    def beside_in_slurm(self, node: str) -> list[int]:
        """Return the processes of a node's Slurm job that must live; none if Slurm does not say that it runs."""
        runs = f" {BESIDE}-{node} RUNNING" in slurm.queue(self.lab, "n1")
        return self.lab.pids(node, f"SLURM_JOB_NAME={BESIDE}-{node}\0") if runs else []

    def queued(self, job_id: str) -> list[str]:
        """Return the numbers of a job in Slurm, also of one that is ending."""
        return slurm.numbers(self.lab, "n1", f"torchfleet-{job_id}-")

    def sweep(self, job_id: str) -> None:
        """End what a job left, in Slurm too."""
        super().sweep(job_id)
        slurm.start(self.lab, NODES)
        if numbers := self.queued(job_id):
            self.lab.root("n1", "scancel", "--quiet", *numbers)

    def clear(self) -> None:
        """End the bystanders, also those in Slurm, which an earlier call may have left there."""
        self.lab.root("n1", "scancel", "--quiet", "--user=fleet", check=False)
        self.resume()
        super().clear()
