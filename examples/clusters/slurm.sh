#!/bin/bash
# One run on one node, requeued until it is done:
#   sbatch examples/clusters/slurm.sh NAME opasd-qwen3-4b --data mine.jsonl --train.gradient-accumulation-steps 8
# The first word is the run's name; the others are those of `opasd train`. Many runs: `opasd sweep WHAT --slurm`.
#SBATCH --job-name=opasd
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus-per-node=8
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:TERM@120
set -u
name=$1
shift
if [ -e "runs/$name/config.yaml" ]; then
  set -- --resume "runs/$name"
else
  set -- "$@" --name "$name"
fi
opasd train "$@" --num-processes "${SLURM_GPUS_ON_NODE:-1}" &
child=$! again=1 stopped=0
# Two minutes before the end of its time, and when it is preempted, the run is told to save. That ends `wait`.
trap 'kill -TERM "$child" 2>/dev/null; again=1 stopped=1' TERM
while [ "$again" = 1 ]; do again=0; wait "$child"; code=$?; done
# A job that was cancelled is not put back into the queue.
if [ "$stopped" = 1 ] && [ ! -e "runs/$name/final" ] &&
  [ "$(squeue --noheader --format=%T --jobs="$SLURM_JOB_ID")" = RUNNING ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
