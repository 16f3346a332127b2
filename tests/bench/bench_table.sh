#!/usr/bin/env bash
# How fast this machine is with a model: ours and, given a folder with its programs, llama.cpp's, side by side, as tables in
# markdown. Both take turns, round by round, and of all rounds the best of each counts: what the machine can do beside its
# other work. For figures to be kept, let nothing else run.
#
#     SN_BUILD=build tests/bench/bench_table.sh MODEL.gguf [-l LLAMA_CPP/build/bin] [-r ROUNDS] [-t THREADS] [PART...]
#
# Parts (default: all but made and long): speed, files, start, quality, nodes, sessions; made: a model of 7B shape, of Q4_K, Q4_0
# and Q8_0 in turn, needs 16 GB of memory and 8 GB below TMPDIR; long: a context of 16,000.
# What llama.cpp can choose is tried, and its best counts: flash attention or not. Files of other types are made by its
# llama-quantize. Needs -t cores; python3.
. "$(dirname "${BASH_SOURCE[0]}")/../system/lib.sh"
set -e
model=$1 llama='' rounds=3 threads=2
shift
while getopts l:r:t: option; do
  case $option in l) llama=$OPTARG ;; r) rounds=$OPTARG ;; t) threads=$OPTARG ;; *) exit 2 ;; esac
done
shift $((OPTIND - 1))
parts=" ${*:-speed files start quality nodes sessions} "
wanted() { [[ $parts == *" $1 "* ]]; }

# -- figures: note NAME VALUE keeps one, best NAME is the greatest of that name, least NAME the smallest

note() { [ -z "$2" ] || echo "$1 $2" >>"$scratch/figures"; }
best() { awk -v name="$1" '$1 == name && (!n++ || $2 > top) { top = $2 } END { if (n) print top }' "$scratch/figures"; }
least() { awk -v name="$1" '$1 == name && (!n++ || $2 < top) { top = $2 } END { if (n) print top }' "$scratch/figures"; }
each_round() { for ((round = 0; round < rounds; round++)); do "$@"; done; }
header() { printf '\n### %s\n| | ours | llama.cpp | ratio |\n| --- | --- | --- | --- |\n' "$1"; }
# row WHAT best|least NAME [FORMAT]: of NAME.ours and NAME.theirs
row() {
  local ours theirs
  ours=$("$2" "$3.ours") theirs=$("$2" "$3.theirs")
  awk -v what="$1" -v a="$ours" -v b="$theirs" -v f="${4:-%.0f}" 'BEGIN {
    printf "| %s | " f " | ", what, a
    if (b == "") print "| |"; else printf f " | %.2f |\n", b, a / b }'
}

# -- programs

ids() { python3 -c 'import sys; print([i * 37 % 400 + 100 for i in range(int(sys.argv[1]))])' "$1" >"$scratch/ids.$1"; }
# ours NAME MODEL THREADS IDS TOKENS: notes NAME.prompt and NAME.decode
ours() {
  local out
  [ -f "$scratch/ids.$4" ] || ids "$4"
  out=$("$bin/swarm" generate --model "$2" --ids-file "$scratch/ids.$4" --max-tokens "$5" --ignore-end --json --local all \
    --threads "$3") || fail "swarm generate failed"
  note "$1.prompt.ours" "$(python3 -c 'import json, sys; print(json.load(sys.stdin)["timings"]["prefill_tok_s"])' <<<"$out")"
  note "$1.decode.ours" "$(python3 -c 'import json, sys; print(json.load(sys.stdin)["timings"]["decode_tok_s"] or "")' <<<"$out")"
}
# theirs NAME MODEL THREADS OPTION...: llama-bench notes NAME
theirs() {
  local name=$1 file=$2 t=$3 fa
  shift 3
  [ -n "$llama" ] || return 0
  for fa in 0 1; do
    note "$name.theirs" "$("$llama/llama-bench" -m "$file" -t "$t" -r 1 -fa $fa -o json "$@" 2>/dev/null |
      python3 -c 'import json, sys; print(json.load(sys.stdin)[0]["avg_ts"])')"
  done
}
count_threads() { for ((t = 1; t <= threads; t *= 2)); do echo $t; done; }

# -- parts

speed_round() { # decode at depths, a prompt of 512; and what memory allows
  for t in $(count_threads); do
    [ ! -x "$bin/tests/bench_kernels" ] ||
      note memory$t.ours "$("$bin/tests/bench_kernels" $t none memory | sed -n 's/.*threads: \([0-9.]*\) GB.*/\1/p')"
    ours d0.$t "$model" $t 1 65
    for depth in 512 4000; do ours d$depth.$t "$model" $t $depth 33; done
    theirs p512.$t "$model" $t -p 512 -n 0
    for depth in 0 512 4000; do theirs d$depth.$t.decode "$model" $t -p 0 -n 32 -d $depth; done
  done
}
speed() {
  local t depth
  each_round speed_round
  header "$(basename "$model"), tokens/s"
  for t in $(count_threads); do
    sed -n "s/^d512.$t.prompt.ours /p512.$t.ours /p" "$scratch/figures" >>"$scratch/figures.more"
    cat "$scratch/figures.more" >>"$scratch/figures" && rm "$scratch/figures.more"
    row "prompt of 512, $t threads" best p512.$t
    for depth in 0 512 4000; do row "decode at depth $depth, $t threads" best d$depth.$t.decode; done
    echo "| memory read by $t threads, GB/s | $(best memory$t.ours) | | |"
  done
}

files_round() {
  for type in Q4_0 Q8_0 F16 BF16; do
    ours $type "$scratch/$type.gguf" "$threads" 512 33
    theirs $type.prompt "$scratch/$type.gguf" "$threads" -p 512 -n 0
    theirs $type.decode "$scratch/$type.gguf" "$threads" -p 0 -n 32 -d 512
  done
}
files() {
  [ -n "$llama" ] || { echo "files: give -l, llama-quantize makes them"; return 0; }
  for type in Q4_0 Q8_0 F16 BF16; do
    "$llama/llama-quantize" --allow-requantize "$model" "$scratch/$type.gguf" $type >/dev/null 2>&1 || fail "llama-quantize failed"
  done
  each_round files_round
  header "Other types of the same model, $threads threads, tokens/s"
  for type in Q4_0 Q8_0 F16 BF16; do
    row "$type, prompt of 512" best $type.prompt
    row "$type, decode at depth 512" best $type.decode
  done
}

# timed NAME COMMAND...: NAME.s and NAME.mb, by wait4
timed() {
  local name=$1 out
  shift
  out=$(python3 -c 'import os, resource, subprocess, sys, time
began = time.monotonic()
subprocess.run(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
print(time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1000)' "$@") || fail "$1 failed"
  note "s.$name" "${out% *}"
  note "mb.$name" "${out#* }"
}
start_round() {
  timed ours "$bin/swarm" generate --model "$model" --prompt "The capital of France is" --max-tokens 1 --local all --threads "$threads"
  [ ! -x "$llama/llama-completion" ] ||
    timed theirs "$llama/llama-completion" -m "$model" -t "$threads" -n 1 -p "The capital of France is" --no-warmup -no-cnv
}
start_and_memory() {
  each_round start_round
  header "From the start of the program to its end after one token, $threads threads (less is better)"
  row "seconds" least s %.3f
  row "peak resident memory, MB" least mb
}

quality() {
  local text=/usr/share/common-licenses/GPL-3
  note ppl.ours "$("$bin/swarm" eval --model "$model" --text $text --local all --threads "$threads" --json |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["perplexity"])')"
  [ -z "$llama" ] || note ppl.theirs "$("$llama/llama-perplexity" -m "$model" -t "$threads" -f $text -c 512 2>&1 |
    sed -n 's/.*PPL = \([0-9.]*\).*/\1/p')"
  header "Perplexity of the GPL-3 text, windows of 512 (less is better)"
  row "perplexity" least ppl %.4f
}

# bench_rows NAME OPTION...: notes NAME.NODES.SESSIONS.decode.ours and .prompt.ours of swarm bench
bench_rows() {
  local name=$1
  shift
  "$bin/swarm" bench --model "$model" --repeat 1 --json - "$@" | python3 -c 'import json, sys
for r in json.load(sys.stdin)["rows"]:
    if r["what"] == "speed":
        at = "%s.%d.%d" % (sys.argv[1], r["nodes"], r["sessions"])
        print(at + ".decode.ours", r["decode_tok_s"]), print(at + ".prompt.ours", r["prefill_tok_s"])' "$name" >>"$scratch/figures"
}
rpc_round() {
  [ -x "$llama/ggml-rpc-server" ] || return 0
  local i list=''
  for i in 1 2 3; do
    start rpc$i "$llama/ggml-rpc-server" -t 1 -H 127.0.0.1 -p $((50060 + i))
    list+=,127.0.0.1:$((50060 + i))
  done
  sleep 1
  theirs chain.3.1.prompt "$model" 1 -rpc "${list#,}" -ngl 99 -p 512 -n 0
  theirs chain.3.1.decode "$model" 1 -rpc "${list#,}" -ngl 99 -p 0 -n 32
  end_all || true
}
nodes_round() {
  bench_rows chain --nodes 1,3 --threads 1 --push --prompt-tokens 512 --new-tokens 64
  bench_rows chain --nodes 3 --threads 1 --push --prompt-tokens 16 --new-tokens 32 --sessions 8
  rpc_round
}
nodes() {
  each_round nodes_round
  header "Nodes of one thread on this machine, tokens/s (llama.cpp: its RPC servers)"
  row "one node, prompt of 512" best chain.1.1.prompt
  row "one node, decode" best chain.1.1.decode
  row "three nodes, prompt of 512" best chain.3.1.prompt
  row "three nodes, decode" best chain.3.1.decode
  row "three nodes, 8 streams in all" best chain.3.8.decode
}

sessions_round() {
  bench_rows many --nodes 1 --threads "$threads" --sessions 1,4,16 --prompt-tokens 16 --new-tokens 32
  [ ! -x "$llama/llama-batched-bench" ] || "$llama/llama-batched-bench" -m "$model" -t "$threads" -c 4096 -npp 16 -ntg 32 \
    -npl 1,4,16 2>/dev/null | awk -F'|' '$2 ~ /16/ { gsub(/ /, ""); print "many.1." $4 ".decode.theirs", $9 }' >>"$scratch/figures"
}
sessions() {
  each_round sessions_round
  header "Sessions decoding at once, one node, $threads threads, tokens/s in all (each of ours has a client with its own output head)"
  for n in 1 4 16; do row "$n sessions" best many.1.$n.decode; done
}

made_round() {
  ours made "$1" "$threads" 1 17
  theirs made.decode "$1" "$threads" -p 0 -n 16
}
made() {
  local type file=$scratch/made.gguf name b
  header "A made model of 7B shape, $threads threads, decode, tokens/s"
  for type in Q4_K Q4_0 Q8_0; do
    "$here/../bench/made_model.py" "$file" --type $type
    sed -i '/^made/d' "$scratch/figures"
    each_round made_round "$file"
    row "$type, $(stat -c %s "$file" | awk '{printf "%.2f", $1 / 1e9}') GB" best made.decode %.2f
    for name in a b c; do
      b=$((($(printf %d "'$name") - 97) * 11))
      start_node made$name "$file" $b:$((b + 11 > 32 ? 32 : b + 11)) --threads 1 ${address[madea]:+--join ${address[madea]}}
      wait_ready made$name
    done
    note made.nodes.ours "$("$bin/swarm" generate --model "$file" --ids-file "$scratch/ids.1" --max-tokens 17 --ignore-end --json \
      --join "${address[madea]}" --threads 1 --push | python3 -c 'import json, sys; print(json.load(sys.stdin)["timings"]["decode_tok_s"])')"
    row "$type, three nodes of one thread, a third each" best made.nodes %.2f
    end_all || true
    unset 'address[madea]'
    rm "$file"
  done
}

long_round() { for depth in 500 4000 15900; do ours long$depth "$1" "$threads" $depth 33; done; }
long() {
  "$here/../bench/made_model.py" "$scratch/long.gguf" --type Q4_0 --shape 135m --blocks 30
  each_round long_round "$scratch/long.gguf"
  header "A context of 16,000: a made model of SmolLM2's shape, $threads threads, decode, tokens/s"
  for depth in 500 4000 15900; do row "depth $depth" best long$depth.decode; done
}

touch "$scratch/figures"
echo "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), $(nproc) cores, $(date +%F), best of $rounds rounds, load $(cut -d' ' -f1 /proc/loadavg)"
wanted speed && speed
wanted files && files
wanted start && start_and_memory
wanted quality && quality
wanted nodes && nodes
wanted sessions && sessions
wanted made && made
wanted long && long
exit 0
