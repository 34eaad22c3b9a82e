#!/bin/bash
# One run on two nodes with eight GPUs each, requeued until it is done:
#   sbatch examples/clusters/nodes.sh NAME opasd-qwen3-8b --data mine.jsonl --train.gradient-accumulation-steps 4
# The first word is the run's name; the others are those of `opasd train`. The nodes see this folder under one path.
#SBATCH --job-name=opasd
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
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
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun --kill-on-bad-exit=1 bash -c 'exec accelerate launch --config_file examples/clusters/two-nodes.yaml \
  --main_process_ip "$0" --machine_rank "$SLURM_NODEID" -m opasd.cli train "$@"' "$first" "$@" &
child=$! again=1 stopped=0
# Two minutes before the end of its time the run is told to save; srun sends the signal on. That ends `wait`.
trap 'kill -TERM "$child" 2>/dev/null; again=1 stopped=1' TERM
while [ "$again" = 1 ]; do again=0; wait "$child"; code=$?; done
# A job that was cancelled is not put back into the queue.
if [ "$stopped" = 1 ] && [ ! -e "runs/$name/final" ] &&
  [ "$(squeue --noheader --format=%T --jobs="$SLURM_JOB_ID")" = RUNNING ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
