"""A real Slurm of one node in a folder: munged, slurmctld and slurmd as processes of this one."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.processes import PATIENCE, environment, wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
CPUS = 8
CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket={place}/munge.socket
CredType=cred/munge
SlurmUser=root
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=100000,requeue_delay=1
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
KillWait=60
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes={host} MaxTime=INFINITE State=UP PriorityTier=10
"""


class Cluster:
    """Calls to Slurm's commands, from one folder."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.environment = environment(SLURM_CONF=str(place / "slurm.conf"), HF_HUB_OFFLINE="1")

    def call(self, *command: str, cwd: Path | None = None) -> str:
        done = subprocess.run(command, cwd=cwd, env=self.environment, capture_output=True, text=True, timeout=PATIENCE,
                              check=False)  # fmt: skip
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout.strip()

    def shows(self, job: str) -> dict[str, str]:
        """Return what Slurm knows of a job or a task."""
        text = self.call("scontrol", "show", "job", "--oneliner", job)
        return dict(word.split("=", 1) for word in text.split() if "=" in word)

    def wait_for(self, job: str, *states: str) -> None:
        wait_until(lambda: self.shows(job)["JobState"] in states)


@contextmanager
def cluster(place: Path) -> Iterator[Cluster]:
    """Start Slurm in a folder, and end it."""
    for name in ("state", "spool"):
        (place / name).mkdir()
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        ports = [one.getsockname()[1], two.getsockname()[1]]
    host = socket.gethostname().split(".")[0]
    (place / "slurm.conf").write_text(CONF.format(host=host, place=place, ports=ports, cpus=CPUS))
    (place / "munge.key").touch(0o600)
    (place / "munge.key").write_bytes(os.urandom(1024))
    place.chmod(0o755)
    own = Cluster(place)
    munged = ["munged", "--force", "--foreground", f"--socket={place}/munge.socket", f"--key-file={place}/munge.key",
              f"--pid-file={place}/munged.pid", f"--log-file={place}/munged.log",
              f"--seed-file={place}/munge.seed"]  # fmt: skip
    with ExitStack() as running:
        for command in (munged, ["slurmctld", "-D"], ["slurmd", "-D"]):
            log = running.enter_context((place / f"{command[0]}.out").open("wb"))
            process = subprocess.Popen(command, env=own.environment, stdout=log, stderr=log)
            running.callback(_end, process)
            if command is munged:
                wait_until((place / "munge.socket").exists, process)
        wait_until(lambda: "idle" in _says(own, "sinfo", "--noheader", "--partition=main"))
        yield own
        subprocess.run(["scancel", "--user=root"], env=own.environment, check=False)
        wait_until(lambda: not _says(own, "squeue", "--noheader"))


def _says(own: Cluster, *command: str) -> str:
    return subprocess.run(command, env=own.environment, capture_output=True, text=True, check=False).stdout


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def missing() -> str:
    """Return why there can be no Slurm here, or nothing."""
    lacking = [program for program in PROGRAMS if shutil.which(program) is None]
    return f"no {', '.join(lacking)}" if lacking else "" if os.getuid() == 0 else "Slurm's daemons need root"
