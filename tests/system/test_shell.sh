#!/usr/bin/env bash
# The programs in a shell: exit codes when output cannot be written or its reader is gone, pipes as files, the file of the user's
# options, what a terminal is told first.
. "$(dirname "$0")/lib.sh"
llama=$fixtures/golden/llama
golden_ids llama "$scratch/ids" 8
generate=("$bin/swarm" generate --model "$llama" --local all --max-tokens 4)

# Output that cannot be written: 3 on a full disk; 141 without a word when the reader is gone.
for words in "--help" "--version" "--help=man" "generate --help" "help generate" "inspect --model $llama --json"; do
  timeout 60 "$bin/swarm" $words >/dev/full 2>"$scratch/err"
  rc=$?
  [ $rc = 3 ] || fail "swarm $words on a full disk: exit code $rc"
  grep -q 'No space left' "$scratch/err" || fail "swarm $words on a full disk says: $(cat "$scratch/err")"
  timeout 60 python3 -c '
import os, subprocess, sys
r, w = os.pipe()
os.close(r)
p = subprocess.run(sys.argv[1:], stdout=w, stderr=subprocess.PIPE)
sys.exit(f"exit code {p.returncode}, said {p.stderr}" if p.returncode != 141 or p.stderr else 0)' "$bin/swarm" $words ||
    fail "swarm $words into a closed pipe"
done
timeout 60 "$bin/swarm-node" --help >/dev/full 2>/dev/null && fail "swarm-node --help on a full disk succeeds"
timeout 60 "${generate[@]}" --ids-file "$scratch/ids" >/dev/full 2>"$scratch/err"
[ $? = 3 ] || fail "generate on a full disk: $(cat "$scratch/err")"

# --watch ends with Ctrl-C.
start_node a "$llama" all
wait_ready a
start watch "$bin/swarm" status --join "${address[a]}" --watch 1
until grep -q "tokens/s\|TOKENS/S" "$scratch/watch.out"; do kill -0 "${pid[watch]}" || fail "status --watch ended"; sleep 0.05; done
signal watch INT
wait_end watch 60
[ $rc = 130 ] || fail "status --watch ends with $rc after Ctrl-C"

# After the ready line of a node comes a line to copy, quoted for a shell; its log is not about missing devices.
grep -qF "use it: swarm generate --model $llama --join ${address[a]} --prompt " "$scratch/a.out" || fail "the node says: $(cat "$scratch/a.out")"
grep -q 'backend unavailable' "$scratch/a.err" && fail "the log names missing devices: $(cat "$scratch/a.err")"
ln -s "$(realpath "$llama")" "$scratch/it's a model"
start_node quoted "$scratch/it's a model" all
wait_ready quoted
eval "words=($(sed -n 's/^use it: //p' "$scratch/quoted.out"))"
[ "${words[3]}" = "$scratch/it's a model" ] || fail "the line cannot be copied: $(cat "$scratch/quoted.out")"
stop_node quoted
if unshare -rn true 2>/dev/null; then # every interface, of a network of its own
  start open unshare -rn sh -c "ip link set lo up 2>/dev/null; exec '$bin/swarm-node' --model '$llama' --blocks all --listen 0.0.0.0:0"
  until grep -q '^use it on this machine: .* --join 127.0.0.1:[0-9]* ' "$scratch/open.out"; do kill -0 "${pid[open]}" || fail "no line to copy"; sleep 0.05; done
  until grep -q 'warn .*--public HOST:PORT' "$scratch/open.err"; do kill -0 "${pid[open]}" || fail "no hint at --public"; sleep 0.05; done
  kill_node open
else
  not_tested "a node that listens at every interface (namespaces are not permitted)"
fi

# Pipes as files; addresses as they are pasted.
succeeds "${generate[@]}" --ids-file "$scratch/ids" --json
ids=$(query "$scratch/run.out" 'd["ids"]')
succeeds bash -c '"$@" --ids-file <(cat "$0") --json' "$scratch/ids" "${generate[@]}"
[ "$(query "$scratch/run.out" 'd["ids"]')" = "$ids" ] || fail "token ids of a pipe are other ones"
succeeds "$bin/swarm" tokenize --model "$fixtures/tokenizer/qwen2" --file <(echo hello)
refuses 2 "regular file" "${generate[@]}" --ids-file "$scratch"
pasted=tcp://${address[a]}
succeeds "$bin/swarm" status --join "$pasted"

# --top-k alone samples: the seed is shown, and --temperature 0 still means the most likely token.
succeeds "${generate[@]}" --ids-file "$scratch/ids" --top-k 5 --seed 3 --json
[ "$(query "$scratch/run.out" 'd["seed"]')" = 3 ] || fail "--top-k alone does not sample"
sampled=$(query "$scratch/run.out" 'd["ids"]')
succeeds "${generate[@]}" --ids-file "$scratch/ids" --top-k 5 --seed 3 --temperature 0.8 --json
[ "$(query "$scratch/run.out" 'd["ids"]')" = "$sampled" ] || fail "--top-k alone samples at another temperature than 0.8"
succeeds "${generate[@]}" --ids-file "$scratch/ids" --top-k 5 --temperature 0 --json
[ "$(query "$scratch/run.out" 'd["ids"]')" = "$ids" ] || fail "--temperature 0 samples"

# The user's file: options of all commands, sections of one, errors with file and line.
mkdir -p "$XDG_CONFIG_HOME/swarm"
config=$XDG_CONFIG_HOME/swarm/config
cat >"$config" <<END
# comment
model = $llama
join = tcp://${address[a]}
max-tokens = 3   # of generate and chat
steps = 5        # of tune: other commands pass it over

[generate]
max-tokens = 2
[eval]
ids-file = /nonexistent
END
succeeds "$bin/swarm" status
succeeds "$bin/swarm" generate --ids-file "$scratch/ids" --json
[ "$(query "$scratch/run.out" 'len(d["ids"])')" = 2 ] || fail "the section of generate is not read"
succeeds "$bin/swarm" generate --ids-file "$scratch/ids" --json -n 1
[ "$(query "$scratch/run.out" 'len(d["ids"])')" = 1 ] || fail "the command line does not win over the user's file"
refuses 2 "nonexistent" "$bin/swarm" eval
refuses 2 "model PATH is missing" "$bin/swarm" generate --config none --ids-file "$scratch/ids"
echo "model = /elsewhere" >"$scratch/other"
refuses 2 "/elsewhere" "$bin/swarm" inspect --config "$scratch/other"
succeeds env -u XDG_CONFIG_HOME HOME="$scratch/home" "$bin/swarm" inspect --model "$llama"
mkdir -p "$scratch/home/.config/swarm" && echo "model = $llama" >"$scratch/home/.config/swarm/config"
succeeds env -u XDG_CONFIG_HOME HOME="$scratch/home" "$bin/swarm" inspect
wrong() { # wrong PATTERN LINE: the line is refused
  printf 'model = x\n%s\n' "$2" >"$config"
  refuses 2 "$1" "$bin/swarm" generate --ids-file "$scratch/ids"
}
wrong "$config:2: unknown option 'modle'; did you mean model" "modle = x"
wrong "$config:2: .* as in \[generate\]" "[generat]"
wrong "$config:2: .* is no section" "[generate"
wrong "$config:2: max-tokens: 'many' must be" "max-tokens = many"
printf '[generate]\nsteps = 5\n' >"$config"
refuses 2 "$config:2: unknown option 'steps'" "$bin/swarm" generate --ids-file "$scratch/ids"
printf '[generate]\ntop-k = 5\n' >"$scratch/node.conf"
refuses 2 "node.conf:1: swarm-node has no commands" "$bin/swarm-node" --config "$scratch/node.conf"

# The name alone: a terminal is told what to do first, anything else gets the old sentence.
refuses 2 "a command is missing" "$bin/swarm"
python3 - "$bin/swarm" >"$scratch/first" <<'PY' || fail "swarm alone at a terminal: $(cat "$scratch/first")"
import os, pty, sys
status = pty.spawn([sys.argv[1]], lambda fd: os.read(fd, 65536))
sys.exit(os.waitstatus_to_exitcode(status))
PY
[ "$(grep -c . "$scratch/first")" -le 10 ] && grep -q -- '--local all' "$scratch/first" || fail "swarm alone says: $(cat "$scratch/first")"

rm "$config"
# Progress at a terminal: how much, its share, time left. The work is longer than the wait, and Ctrl-C ends it.
mkdir "$scratch/model"
cp "$llama/config.json" "$llama/model.safetensors" "$fixtures/tokenizer/smollm/tokenizer.json" "$scratch/model"
python3 -c 'print("7-3-9" * 100000)' >"$scratch/long"
cat >"$scratch/progress.py" <<'PY'
import sys
from terminal import Terminal
t = Terminal(sys.argv[3:], columns=200)
t.expect(sys.argv[1], f" {sys.argv[2]}, ", " %, ", " left,")
t.send("\x03\x03")
while t.read():
    pass
PY
shows_progress() { # shows_progress WHAT UNIT COMMAND...
  PYTHONPATH=$here timeout -k 2 100 python3 "$scratch/progress.py" "$@" >"$scratch/out" 2>&1 || fail "no progress of ${*:3:2}: $(cat "$scratch/out")"
}
here_alone=(--model "$scratch/model" --local all --threads 1)
shows_progress "scoring: " windows "$bin/swarm" eval "${here_alone[@]}" --file "$scratch/long" --ctx 64
shows_progress ", context 0" repeats "$bin/swarm" bench "${here_alone[@]}" --prompt-tokens 64 --new-tokens 150 --repeat 1000
head -c 7900 "$scratch/long" >"$scratch/prompt"
if [ -n "${SN_TEST_MODEL:-}" ]; then
  shows_progress "prefill: " tokens "$bin/swarm" generate --model "$SN_TEST_MODEL" --local all --prompt-file "$scratch/prompt" --max-tokens 1
else
  not_tested "the progress of a prompt (SN_TEST_MODEL names none)"
fi
stop_node a
