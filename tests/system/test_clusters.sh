#!/usr/bin/env bash
# The files for clusters in configs/: the launcher with a fake ssh, and the systemd unit with systemd's own check
# (test_slurm.sh has the Slurm job).
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
configs=$here/../../configs
model=$scratch/model # a path of its own, by which the test finds the nodes
cp -r "$fixtures/golden/llama" "$model"
golden_ids llama "$scratch/ids"
generate=("$bin/swarm" generate --model "$model" --ids-file "$scratch/ids" --max-tokens 8 --json)
succeeds "${generate[@]}" --local all
expected=$(query "$scratch/run.out" 'd["ids"]')

nodes_left() {
  local file
  for file in /proc/[0-9]*/cmdline; do
    tr '\0' ' ' <"$file" | grep -q "^[^ ]*swarm-node --model $model " && basename "$(dirname "$file")"
  done 2>/dev/null
}
wait_no_nodes() {
  local until=$(($(now_ms) + 60000))
  while [ -n "$(nodes_left)" ]; do
    [ "$(now_ms)" -lt "$until" ] || fail "nodes are left after $1: $(nodes_left)"
    sleep 0.02
  done
}

# -- launch.sh: the fake ssh is a shell that gets the name of the machine as its first argument
cat >"$scratch/ssh" <<'END'
#!/bin/bash
echo "$1" >>"$(dirname "$0")/called"
exec bash -c "$2"
END
chmod +x "$scratch/ssh"
printf '# three\nme@alpha 127.0.0.1:0\n\nbeta   127.0.0.1:0 # here\ngamma 127.0.0.1:0\n' >"$scratch/hosts"
launch=(env "SSH=$scratch/ssh" "$configs/launch.sh")
start_launcher() { # as `start` of lib.sh, which waits until the process is not bash
  "${launch[@]}" "$scratch/hosts" --model "$model" --bin "$bin" -- --threads 1 --kv-memory 16MiB \
    >"$scratch/launcher.out" 2>"$scratch/launcher.err" </dev/null &
  pid[launcher]=$!
}

start_launcher
until=$(($(now_ms) + 60000))
until grep -q '^--join ' "$scratch/launcher.out" 2>/dev/null; do
  kill -0 "${pid[launcher]}" || fail "the launcher did not start its nodes"
  [ "$(now_ms)" -lt "$until" ] || fail "the launcher was not ready within 30 s"
  sleep 0.02
done
[ "$(sort -u "$scratch/called" | tr '\n' ' ')" = "beta gamma me@alpha " ] || fail "it called $(sort -u "$scratch/called")"
read -r _ join <"$scratch/launcher.out"
until=$(($(now_ms) + 60000))
until succeeds "$bin/swarm" status --join "$join" --json &&
  [ "$(query "$scratch/run.out" 'sorted((n["name"], n["blocks"]) for n in d["nodes"])')" = "[('alpha', '0:1'), ('beta', '1:2'), ('gamma', '2:4')]" ]; do
  [ "$(now_ms)" -lt "$until" ] || fail "the nodes have other names or blocks: $(cat "$scratch/run.out")"
  sleep 0.1
done
succeeds "${generate[@]}" --join "$join"
[ "$(query "$scratch/run.out" 'd["ids"]')" = "$expected" ] || fail "the launched swarm generates other tokens"
signal launcher TERM
wait_end launcher 60
wait_no_nodes "the launcher was asked to leave"

start_launcher
until=$(($(now_ms) + 60000))
until [ "$(nodes_left | wc -l)" = 3 ]; do
  [ "$(now_ms)" -lt "$until" ] || fail "the launcher did not start its nodes within 30 s"
  sleep 0.02
done
signal launcher KILL
wait_end launcher 60
wait_no_nodes "the launcher was killed"

refuses 2 "usage" "${launch[@]}" "$scratch/no-hosts"
refuses 2 "model PATH is missing" "${launch[@]}" "$scratch/hosts"
refuses 2 "come after --" "${launch[@]}" "$scratch/hosts" --model "$model" --threads 1
refuses 2 "does not show the model" "${launch[@]}" "$scratch/hosts" --model "$scratch/nothing" --bin "$bin"
run "${launch[@]}" "$scratch/hosts" --model "$model" --bin "$bin" -- --wrongly # the nodes write to stderr, too, in any order
[ $rc = 2 ] && grep -Eq "alpha.? did not start" "$scratch/run.err" || fail "a node with a wrong option: exit code $rc"
for i in 1 2 3 4 5; do echo "h$i 127.0.0.1:0"; done >"$scratch/five"
refuses 2 "4 blocks.*5 machines" "${launch[@]}" "$scratch/five" --model "$model" --bin "$bin"
echo "alpha beta" >"$scratch/bad"
refuses 2 "no ADDRESS:PORT" "${launch[@]}" "$scratch/bad" --model "$model" --bin "$bin"

# -- the systemd unit, with this machine's path of the program
if command -v systemd-analyze >/dev/null; then
  sed "s|/usr/local/bin/|$(cd "$bin" && pwd)/|" "$configs/swarm-node.service" >"$scratch/swarm-node.service"
  succeeds systemd-analyze verify "$scratch/swarm-node.service"
  [ ! -s "$scratch/run.err" ] || fail "systemd reports a problem in the unit"
else
  not_tested "the systemd unit (there is no systemd-analyze)"
fi
