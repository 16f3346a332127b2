#!/usr/bin/env bash
# Text from model files and peers is made harmless before it reaches a terminal: control characters in a family's name, in text
# that a model writes, in log lines. Pipes get the exact bytes.
. "$(dirname "$0")/lib.sh"

model=$fixtures/golden/llama
evil=$'\033[2J\033]0;owned\a\302\233'
mkdir "$scratch/evil"
cp "$model"/* "$scratch/evil/"
python3 - "$scratch/evil/config.json" <<'PY'
import json, sys
path = sys.argv[1]
config = json.load(open(path))
config["model_type"] = "evil\x1b[31m\x9b\u202e"
config["architectures"] = ["Evil\x1b[31mForCausalLM"]
json.dump(config, open(path, "w"))
PY

# on_terminal COMMAND...: runs it at a pseudoterminal; what the terminal received is in $scratch/terminal.
on_terminal() {
  timeout 60 python3 - "$scratch/terminal" "$@" <<'PY'
import os, pty, sys
received = bytearray()
def read(fd):
    data = os.read(fd, 65536)
    received.extend(data)
    return data
pty.spawn(sys.argv[2:], read)
open(sys.argv[1], "wb").write(received)
PY
}
harmless() { # no control character but newline, tab, and the carriage return that the terminal adds itself
  python3 -c '
import re, sys
text = open(sys.argv[1], "rb").read().decode("utf-8", "surrogateescape").replace("\r\n", "\n")
bad = re.findall("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\udc80-\udcff]", text)
sys.exit(f"{sys.argv[2]}: the terminal received {bad}" if bad else 0)' "$scratch/terminal" "$1" || fail "$1 reached the terminal"
}

run "$bin/swarm" inspect --model "$scratch/evil"
on_terminal "$bin/swarm" inspect --model "$scratch/evil" >"$scratch/out" </dev/null
grep -q evil "$scratch/terminal" || fail "inspect says nothing about the family: $(cat "$scratch/terminal")"
harmless "the name of a family"
on_terminal "$bin/swarm-node" --model "$scratch/evil" --blocks 0:1 --listen 127.0.0.1:0 >"$scratch/out" </dev/null
grep -q evil "$scratch/terminal" || fail "the node says nothing about the family: $(cat "$scratch/terminal")"
harmless "the name of a family, from a node,"

"$bin/swarm" tokenize --model "$fixtures/tokenizer/qwen2" --text "$evil" --json |
  python3 -c 'import json, sys; print(json.load(sys.stdin)["ids"])' >"$scratch/ids" || fail "tokenize"
"$bin/swarm" tokenize --model "$fixtures/tokenizer/qwen2" --decode --ids-file "$scratch/ids" >"$scratch/piped" || fail "decode"
grep -qF "$evil" "$scratch/piped" || fail "a pipe does not get the exact bytes: $(od -c "$scratch/piped" | head -3)"
on_terminal "$bin/swarm" tokenize --model "$fixtures/tokenizer/qwen2" --decode --ids-file "$scratch/ids" >"$scratch/out" </dev/null
grep -q owned "$scratch/terminal" || fail "the text is missing: $(cat "$scratch/terminal")"
harmless "text of a model"
on_terminal "$bin/swarm" tokenize --model "$fixtures/tokenizer/qwen2" --decode --ids-file "$scratch/ids" --json >"$scratch/out" </dev/null
harmless "text in JSON"
grep -qiF '\u009b' "$scratch/terminal" || fail "JSON at a terminal lost a character: $(cat "$scratch/terminal")"
