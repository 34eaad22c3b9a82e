"""`opasd sweep --slurm` and examples/clusters/slurm.sh on a real Slurm: requeued tasks end as undisturbed runs do."""

import shutil
import sys

import pytest
import torch
from safetensors.torch import load_file

from tests.faults.recipe import write_recipe
from tests.processes import ROOT, environment, run, wait_until
from tests.slurm.cluster import CPUS, cluster, missing
from tests.training import rows

pytestmark = [pytest.mark.slurm, pytest.mark.skipif(bool(missing()), reason=missing())]
STEPS = ["--train.max-steps", "120", "--train.lr-scheduler-type", "constant", "--train.save-steps", "1000"]
SEED = '{"recipe": "tiny.yaml", "grid": {"train.seed": [1, 2]}}'
SWEEP = [sys.executable, "-m", "opasd", "sweep", "two.yaml", "--no-evaluation", "--gpus-per-run", "0", *STEPS]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("sweep")
    write_recipe(place)
    (place / "two.yaml").write_text(SEED)
    done = run([*SWEEP, "--output", "whole"], cwd=place)
    assert done.returncode == 0, done.stderr
    return place


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    with cluster(tmp_path_factory.mktemp("slurm")) as own:
        yield own


def same(one, other):
    first, second = (load_file(folder / "final" / "adapter_model.safetensors") for folder in (one, other))
    assert all(torch.equal(first[name], second[name]) for name in second)
    assert rows(one) == rows(other)


def restarts(slurm, task, count):
    wait_until(lambda: int(slurm.shows(task)["Restarts"]) >= count)


def test_a_sweep_is_submitted_once_and_requeued_until_it_is_done(place, slurm):
    words = [*SWEEP, "--output", "swept", "--slurm"]
    dry = slurm.call(*words, "--dry-run", cwd=place)
    assert dry.startswith("#!/bin/bash\n#SBATCH --job-name=opasd-two\n#SBATCH --array=0-1\n")
    assert not (place / "swept").exists()
    (place / "dry.sh").write_text(dry)
    slurm.call("sbatch", "--test-only", "dry.sh", cwd=place)
    job = slurm.call(*words, cwd=place)
    first, second = sorted((place / "whole").glob("*/config.yaml"))
    names = [first.parent.name, second.parent.name]
    begun = [place / "swept" / name for name in names]
    assert slurm.call(*words, cwd=place) == ""  # both are in the queue already
    # The end of its time, as Slurm tells the script of it: the run saves and goes back into the queue.
    wait_until(lambda: len(rows(begun[0])) > 2)
    slurm.call("scancel", "--batch", "--signal=TERM", f"{job}_0")
    restarts(slurm, f"{job}_0", 1)
    assert list(begun[0].glob("checkpoint-*"))
    # Preemption: a job that goes first needs the whole node.
    wait_until(lambda: len(rows(begun[1])) > 2 or (begun[1] / "final").exists())
    urgent = slurm.call("sbatch", "--parsable", "--partition=urgent", "--exclusive", f"--ntasks={CPUS}",
                        "--output=/dev/null", "--wrap=true")  # fmt: skip
    slurm.wait_for(urgent, "COMPLETED")
    for number in (0, 1):
        slurm.wait_for(f"{job}_{number}", "COMPLETED")
        same(begun[number], place / "whole" / names[number])
    log = (place / "swept" / "slurm" / f"{job}_0.log").read_text()
    assert "Traceback" not in log
    assert slurm.call(*words, cwd=place) == ""
    assert [path.name for path in (place / "swept" / "slurm").glob("*.sh")] == ["1.sh"]
    table = run([*SWEEP, "--output", "swept", "--table"], cwd=place)
    assert table.returncode == 0, table.stderr


def test_a_cancelled_task_stays_cancelled(place, slurm):
    words = [*SWEEP, "--output", "cancelled", "--slurm", "--train.max-steps", "100000"]
    job = slurm.call(*words, cwd=place)
    wait_until(lambda: any(len(rows(path)) > 1 for path in (place / "cancelled").glob("*/")))
    slurm.call("scancel", job)
    for number in (0, 1):
        slurm.wait_for(f"{job}_{number}", "CANCELLED")
    assert all(int(slurm.shows(f"{job}_{number}")["Restarts"]) == 0 for number in (0, 1))


def test_what_slurm_refuses_is_one_message(place, slurm):
    words = [*SWEEP, "--output", "refused", "--slurm", "--slurm-option=--partition=nowhere"]
    done = run(words, cwd=place, env=slurm.environment)
    assert done.returncode == 2
    assert "sbatch refuses the sweep (sbatch: error: invalid partition specified: nowhere" in done.stderr
    assert not list((place / "refused" / "slurm").glob("*"))


@pytest.mark.parametrize("script", sorted(path.name for path in (ROOT / "examples" / "clusters").glob("*.sh")))
def test_slurm_takes_every_example(place, slurm, script):
    path = str(ROOT / "examples" / "clusters" / script)
    slurm.call("sbatch", "--test-only", "--nodes=1", "--gpus-per-node=0", path, "name", "model", "recipe", cwd=place)


def test_the_example_script_requeues_one_run(place, slurm):
    shutil.copy(ROOT / "examples" / "clusters" / "slurm.sh", place / "slurm.sh")
    (place / "bin").mkdir()
    (place / "bin" / "opasd").write_text(f'#!/bin/sh\nexec {sys.executable} -m opasd "$@"\n')
    (place / "bin" / "opasd").chmod(0o755)
    slurm.environment["PATH"] = f"{place / 'bin'}:{environment()['PATH']}"
    slurm.call("sbatch", "--test-only", "--gpus-per-node=0", "slurm.sh", "one", "tiny.yaml", cwd=place)
    job = slurm.call("sbatch", "--parsable", "--gpus-per-node=0", "--output=one.log", "slurm.sh", "one", "tiny.yaml",
                     *STEPS, "--train.seed", "1", cwd=place)  # fmt: skip
    one = place / "runs" / "one"
    wait_until(lambda: len(rows(one)) > 2)
    slurm.call("scancel", "--batch", "--signal=TERM", job)
    restarts(slurm, job, 1)
    slurm.wait_for(job, "COMPLETED")
    whole = next(path for path in (place / "whole").iterdir() if path.name.endswith("-1"))
    same(one, whole)
    assert "Traceback" not in (place / "one.log").read_text()
