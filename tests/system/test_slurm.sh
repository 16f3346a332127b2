#!/usr/bin/env bash
# configs/slurm.sbatch under Slurm itself: a controller and three slurmd on this machine, each with an address of the loopback network.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
PATH=$PATH:/usr/sbin
command -v slurmctld >/dev/null && command -v slurmd >/dev/null || skip "Slurm is not installed (Debian: slurm-wlm)"
model=$fixtures/golden/llama
golden_ids llama "$scratch/ids"
succeeds "$bin/swarm" generate --model "$model" --ids-file "$scratch/ids" --max-tokens 8 --json --local all
expected=$(query "$scratch/run.out" 'd["ids"]')

port=$((21000 + $$ % 9000)) # and those after it: below the range that the kernel assigns
machine=$(hostname -s)
export SLURM_CONF=$scratch/slurm.conf
mkdir "$scratch/state"
cat >"$SLURM_CONF" <<END_OF_CONF
ClusterName=test
SlurmctldHost=$machine(127.0.0.1)
SlurmctldPort=$port
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/none
CredType=cred/none
StateSaveLocation=$scratch/state
SlurmdSpoolDir=$scratch/spool-%n
SlurmctldPidFile=$scratch/slurmctld.pid
SlurmdPidFile=$scratch/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
KillWait=5
$(for k in 1 2 3; do echo "NodeName=127.0.0.$k NodeHostname=$machine NodeAddr=127.0.0.$k Port=$((port + k)) CPUs=2"; done)
PartitionName=all Nodes=127.0.0.[1-3] Default=YES State=UP
END_OF_CONF
trap 'timeout 20 scancel --full --signal=KILL --user="$(id -un)" 2>/dev/null; cleanup' EXIT # steps are no children of this script
start controller slurmctld -D -i -f "$SLURM_CONF"
for k in 1 2 3; do start "slurmd$k" slurmd -D -N "127.0.0.$k" -f "$SLURM_CONF"; done
until=$(($(now_ms) + 60000))
until [ "$(sinfo --noheader --states=idle --format=%D 2>/dev/null)" = 3 ]; do
  [ "$(now_ms)" -lt "$until" ] || fail "Slurm was not ready within a minute: $(sinfo 2>&1)"
  sleep 0.1
done

job() { # job COMMAND: submits configs/slurm.sbatch with this work, and waits for its end
  run env "MODEL=$model" "BIN=$(cd "$bin" && pwd)" "PORT=$((port + 10))" KV_MEMORY=16MiB "WORK=$1" \
    sbatch --wait --cpus-per-task=1 --time=2 --chdir="$scratch" --output="$scratch/job.out" --error="$scratch/job.err" "$here/../../configs/slurm.sbatch"
}
job '"$BIN/swarm" generate --model "$MODEL" --join "$JOIN" --ids-file '"$scratch/ids"' --max-tokens 8 --json >'"$scratch/job.json"
[ $rc = 0 ] || fail "the job ended with $rc"
[ "$(query "$scratch/job.json" 'd["ids"]')" = "$expected" ] || fail "the job's swarm generates other tokens"
[ "$(query "$scratch/job.json" '[h["blocks"] for h in d["timings"]["hops"]]')" = "['0:1', '1:2', '2:4']" ] || fail "the cuts differ"
job 'exit 3'
[ $rc = 3 ] || fail "a job whose work fails with 3 ended with $rc"

until=$(($(now_ms) + 60000))
until [ "$(sinfo --noheader --states=idle --format=%D)" = 3 ]; do # and no machine is left at work
  [ "$(now_ms)" -lt "$until" ] || fail "nodes are left after the jobs: $(squeue --steps)"
  sleep 0.1
done
for name in slurmd1 slurmd2 slurmd3 controller; do signal $name TERM; wait_end $name 60; done
