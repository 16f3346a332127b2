#!/usr/bin/env bash
# A session is saved to a file over one cut of the swarm and resumed over another one; the text is that of an uninterrupted session.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
model=$fixtures/golden/llama
golden_ids llama "$scratch/ids"
head -c 32 /dev/urandom >"$scratch/key"
head -c 32 /dev/urandom >"$scratch/other-key"
chmod 600 "$scratch/key" "$scratch/other-key"
file=$scratch/session
sampled=(--temperature 0.9 --top-k 40 --seed 7)

generate() { succeeds "$bin/swarm" generate --model "$model" --ignore-eos --json "$@"; }
ids() { query "$scratch/run.out" 'd["ids"]'; }

# same_text OPTIONS: compares 40 tokens at once with 25 and 15 tokens over two cuts, with these sampling options.
same_text() {
  generate --ids-file "$scratch/ids" --local all --max-tokens 40 "$@"
  local whole=$(ids)
  generate --ids-file "$scratch/ids" --join "${address[a]}" --only a --only b --only c --max-tokens 25 --force --save "$file" --session-key "$scratch/key" "$@"
  local first=$(ids)
  [ "$(stat -c %a "$file")" = 600 ] || fail "other users may read the file"
  for mode in "--join ${address[a]} --only d --only e" "--join ${address[a]} --only d --only e --push" "--join ${address[a]} --local 0:1 --only b --only c" "--local all"; do
    generate --load "$file" --session-key "$scratch/key" --max-tokens 15 $mode "$@"
    [ "$(query "$scratch/run.out" 'd["timings"]["prefill_tokens"]')" = 1 ] || fail "$mode recomputed the KV cache"
    [ "$(python3 -c "print($first + $(ids))")" = "$whole" ] || fail "tokens differ: $mode $*"
  done
}

start_three "$model"
start_node d "$model" 0:2 --join "${address[a]}"
start_node e "$model" 2:4 --join "${address[a]}"
wait_ready d e
sleep 0.3
same_text
same_text "${sampled[@]}"

# Saved again after it resumed, with local blocks, and then over nodes again.
generate --ids-file "$scratch/ids" --local all --max-tokens 30
whole=$(ids)
generate --ids-file "$scratch/ids" --join "${address[a]}" --max-tokens 10 --save "$file" --session-key "$scratch/key" --force
parts=$(ids)
for mode in "--local all" "--join ${address[a]} --push"; do
  generate --load "$file" --session-key "$scratch/key" --max-tokens 10 $mode --save "$file"
  parts=$(python3 -c "print($parts + $(ids))")
done
[ "$parts" = "$whole" ] || fail "tokens differ after three parts"

# A file is tried before the text is computed, and replaced only where it was loaded or with --force.
for bad in "$file" /nonexistent/s "$scratch"; do
  refuses 2 '^swarm generate: --save: ' "$bin/swarm" generate --model /nonexistent --local all --ids-file "$scratch/ids" --save "$bad"
done

load=("$bin/swarm" generate --model "$model" --local all --max-tokens 2 --json --load)
refuses 2 'another key, or is damaged' "${load[@]}" "$file" --session-key "$scratch/other-key"
refuses 2 'give --session-key FILE' "${load[@]}" "$file"
refuses 2 'cannot be opened' "${load[@]}" "$scratch/none" --session-key "$scratch/key"
refuses 2 'is not a saved session' "${load[@]}" "$model/config.json" --session-key "$scratch/key"
refuses 2 'session with another model' "$bin/swarm" generate --model "$fixtures/golden/qwen2" --local all --json --load "$file" --session-key "$scratch/key"
size=$(stat -c %s "$file")
head -c $((size - 1)) "$file" >"$scratch/short"
refuses 2 'is cut short' "${load[@]}" "$scratch/short" --session-key "$scratch/key"
python3 - "$file" "$scratch/damaged" <<'END'
import sys
data = bytearray(open(sys.argv[1], "rb").read())
data[len(data) * 2 // 3] ^= 4
open(sys.argv[2], "wb").write(data)
END
refuses 2 'is damaged' "${load[@]}" "$scratch/damaged" --session-key "$scratch/key"
cp "$file" "$scratch/long"
echo more >>"$scratch/long"
refuses 2 'holds more than a saved session' "${load[@]}" "$scratch/long" --session-key "$scratch/key"
chmod 644 "$scratch/key"
refuses 2 'read or written by others' "${load[@]}" "$file" --session-key "$scratch/key"
ls "$scratch" | grep -q 'session\.' && fail "an unfinished file is left"
stop_three
