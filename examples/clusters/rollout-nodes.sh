#!/bin/bash
# Training on one node with eight GPUs, rollouts on another with eight vLLM servers, requeued until it is done:
#   sbatch examples/clusters/rollout-nodes.sh NAME MODEL opasd-qwen3-4b --data mine.jsonl --train.gradient-accumulation-steps 8
# NAME is the run's name and MODEL its base; the other words are those of `opasd train`. Both nodes see this folder
# under one path: the servers read the student's adapters from it.
#SBATCH --job-name=opasd
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:TERM@120
set -u
name=$1 model=$2
shift 2
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
urls=()
for gpu in 0 1 2 3 4 5 6 7; do urls+=("http://${nodes[1]}:$((8000 + gpu))"); done
export VLLM_ALLOW_RUNTIME_LORA_UPDATING=True
srun --nodes=1 --ntasks=1 --nodelist="${nodes[1]}" bash -c 'for gpu in 0 1 2 3 4 5 6 7; do
    CUDA_VISIBLE_DEVICES=$gpu vllm serve "$0" --port $((8000 + gpu)) --enable-lora --max-lora-rank 64 &
  done; wait' "$model" > "slurm-$SLURM_JOB_ID-servers.log" 2>&1 &
servers=$!
trap 'kill "$servers" 2>/dev/null' EXIT
if [ -e "runs/$name/config.yaml" ]; then
  set -- --resume "runs/$name"
else
  set -- "$@" --name "$name"
fi
# The first requests wait for servers that still load the model: 20 tries are about eight minutes.
srun --nodes=1 --ntasks=1 --nodelist="${nodes[0]}" opasd train "$@" --num-processes "${SLURM_GPUS_ON_NODE:-8}" \
  --rollout.engine vllm_server --rollout.servers.urls "${urls[@]}" --rollout.servers.retries 20 \
  --rollout.servers.adapter-dir "$PWD/adapters" &
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
