#!/usr/bin/env bash
# The speed of this machine with a model: this project and, given a folder with its programs, llama.cpp, as tables in Markdown.
# Both are measured alternately, round by round, and the best round of each counts, because other work on the machine only slows
# them down. Let nothing else run for numbers that are to be published.
#
#     SN_BUILD=build tests/bench/bench_table.sh MODEL.gguf [-l LLAMA_CPP/build/bin] [-r ROUNDS] [-t THREADS] [-q] [PART...]
#
# Parts (default: all but types): speed, files, start, quality, nodes, sessions; long: a context of 16,000; made: a model of 7B
# shape, of Q4_K, Q4_0 and Q8_0 in turn, needs 16 GB of memory and 8 GB below TMPDIR; types: each weight type alone, and a model of
# 1B shape of it (TYPES="Q4_K_M Q6_K ..." takes those only). All of them should take about 20 minutes. -q takes a few
# minutes, with short prompts and a small synthetic model, and shows only that everything runs. Progress is printed on stderr.
# Both are measured warm, by their own benchmarks: swarm bench and llama-bench. llama.cpp is measured with and without flash
# attention, and the better result counts. Where others work on the machine, PREFIX="chrt -f 5" stands before the measured programs. Its llama-quantize makes files of other types. Needs -t cores and python3.
. "$(dirname "${BASH_SOURCE[0]}")/../system/lib.sh"
set -e
PREFIX=${PREFIX-}
model=$1 llama='' rounds=2 threads=2 prompt=512 deep=4000 far=15900 new=32 shape=7b
shift
while getopts l:r:t:q option; do
  case $option in
  l) llama=$OPTARG ;; r) rounds=$OPTARG ;; t) threads=$OPTARG ;;
  q) rounds=1 prompt=64 deep=128 far=400 new=4 shape=tiny ;;
  *) exit 2 ;;
  esac
done
shift $((OPTIND - 1))
parts=" ${*:-speed files start quality nodes sessions long made} "
wanted() { [[ $parts == *" $1 "* ]]; }
say() { printf '%(%T)T %s\n' -1 "$*" >&2; }

# -- results: note NAME VALUE stores one, best NAME prints the greatest of that name, least NAME the smallest

note() { [ -z "$2" ] || echo "$1 $2" >>"$scratch/figures"; }
best() { awk -v name="$1" '$1 == name && (!n++ || $2 > top) { top = $2 } END { if (n) print top }' "$scratch/figures"; }
least() { awk -v name="$1" '$1 == name && (!n++ || $2 < top) { top = $2 } END { if (n) print top }' "$scratch/figures"; }
each_round() {
  for ((round = 1; round <= rounds; round++)); do
    say "$1: round $round of $rounds"
    "$@"
  done
}
header() { printf '\n### %s\n| | ours | llama.cpp | ratio |\n| --- | --- | --- | --- |\n' "$1"; }
# row WHAT best|least NAME [FORMAT]: prints NAME.ours and NAME.theirs
row() {
  local ours theirs
  ours=$("$2" "$3.ours") theirs=$("$2" "$3.theirs")
  awk -v what="$1" -v a="$ours" -v b="$theirs" -v f="${4:-%.0f}" 'BEGIN {
    printf "| %s | " f " | ", what, a
    if (b == "") print "| |"; else printf f " | %.2f |\n", b, a / b }'
}

# -- programs

# ours NAME MODEL OPTION...: runs swarm bench; stores NAME.THREADS.NODES.SESSIONS.CONTEXT.prompt.ours and .decode.ours
ours() {
  local name=$1 file=$2
  shift 2
  $PREFIX "$bin/swarm" bench --model "$file" --repeat 1 --json "$@" 2>"$scratch/bench.err" | python3 -c 'import json, sys
for r in json.load(sys.stdin)["rows"]:
    if r["test"] == "speed":
        at = "%s.%d.%d.%d.%d" % (sys.argv[1], r["threads"], r["nodes"], r["sessions"], r["context"])
        print(at + ".decode.ours", r["decode_tok_s"]), print(at + ".prompt.ours", r["prefill_tok_s"])' "$name" >>"$scratch/figures" ||
    fail "swarm bench $* failed"
}
# one NAME MODEL THREADS OPTION...: the same, with all blocks in one program
one() { ours "$1" "$2" --local all --threads "$3" --prompt-tokens $prompt --new-tokens $new "${@:4}"; }
# theirs NAME MODEL THREADS OPTION...: runs llama-bench; stores NAME
theirs() {
  local name=$1 file=$2 t=$3 fa
  shift 3
  [ -n "$llama" ] || return 0
  for fa in 0 1; do
    note "$name.theirs" "$($PREFIX "$llama/llama-bench" -m "$file" -t "$t" -r 1 -fa $fa -o json "$@" 2>/dev/null |
      python3 -c 'import json, sys; print(json.load(sys.stdin)[0]["avg_ts"])')" || say "llama-bench $* failed"
  done
}
count_threads() { for ((t = 1; t <= threads; t *= 2)); do echo $t; done; }

# -- parts

speed_round() { # a prompt, decode at depths; and the limit set by memory
  for t in $(count_threads); do
    [ ! -x "$bin/tests/bench_kernels" ] ||
      note memory$t.ours "$("$bin/tests/bench_kernels" $t none memory | sed -n 's/.*threads: \([0-9.]*\) GB.*/\1/p')"
    one speed "$model" $t --context 0,$prompt,$deep
    theirs speed.$t.0.1.0.prompt "$model" $t -p $prompt -n 0
    for depth in 0 $prompt $deep; do theirs speed.$t.0.1.$depth.decode "$model" $t -p 0 -n $new -d $depth; done
  done
}
speed() {
  local t depth
  each_round speed_round
  header "$(basename "$model"), tokens/s"
  for t in $(count_threads); do
    row "prompt of $prompt, $t threads" best speed.$t.0.1.0.prompt
    for depth in 0 $prompt $deep; do row "decode at depth $depth, $t threads" best speed.$t.0.1.$depth.decode; done
    echo "| memory read by $t threads, GB/s | $(best memory$t.ours) | | |"
  done
}

files_round() {
  for type in Q4_0 Q8_0 F16 BF16; do
    for t in $(count_threads); do
      one $type "$scratch/$type.gguf" $t
      theirs $type.$t.0.1.0.prompt "$scratch/$type.gguf" $t -p $prompt -n 0
      theirs $type.$t.0.1.0.decode "$scratch/$type.gguf" $t -p 0 -n $new
    done
  done
}
files() {
  [ -n "$llama" ] || { echo "files: give -l, because llama-quantize makes them"; return 0; }
  for type in Q4_0 Q8_0 F16 BF16; do
    "$llama/llama-quantize" --allow-requantize "$model" "$scratch/$type.gguf" $type >/dev/null 2>&1 || fail "llama-quantize failed"
  done
  each_round files_round
  header "Other types of the same model, tokens/s"
  for type in Q4_0 Q8_0 F16 BF16; do
    for t in $(count_threads); do
      row "$type, prompt of $prompt, $t threads" best $type.$t.0.1.0.prompt
      row "$type, decode, $t threads" best $type.$t.0.1.0.decode
    done
  done
  rm -f "$scratch"/{Q4_0,Q8_0,F16,BF16}.gguf
}

# timed NAME COMMAND...: stores NAME.s and NAME.mb, measured by wait4
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
  say quality
  note ppl.ours "$("$bin/swarm" eval --model "$model" --file $text --local all --threads "$threads" --json |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["perplexity"])')"
  [ -z "$llama" ] || note ppl.theirs "$("$llama/llama-perplexity" -m "$model" -t "$threads" -f $text -c 512 2>&1 |
    sed -n 's/.*PPL = \([0-9.]*\).*/\1/p')"
  header "Perplexity of the GPL-3 text, windows of 512 (less is better)"
  row "perplexity" least ppl %.4f
}

rpc_round() {
  [ -x "$llama/ggml-rpc-server" ] || return 0
  local i list='' until
  for i in 1 2 3; do
    start rpc$i "$llama/ggml-rpc-server" -t 1 -H 127.0.0.1 -p $((50060 + i))
    list+=,127.0.0.1:$((50060 + i))
    until=$(($(now_ms) + 10000))
    until (exec 3<>/dev/tcp/127.0.0.1/$((50060 + i))) 2>/dev/null; do
      [ "$(now_ms)" -lt "$until" ] || { say "ggml-rpc-server did not start"; end_all; return 0; }
      sleep 0.1
    done
  done
  theirs chain.1.3.1.0.prompt "$model" 1 -rpc "${list#,}" -ngl 99 -p $prompt -n 0
  theirs chain.1.3.1.0.decode "$model" 1 -rpc "${list#,}" -ngl 99 -p 0 -n $new
  end_all || true
}
nodes_round() {
  ours chain "$model" --nodes 1,3 --threads 1 --push --prompt-tokens $prompt --new-tokens $((2 * new))
  ours chain "$model" --nodes 3 --threads 1 --push --prompt-tokens 16 --new-tokens $new --sessions 8
  rpc_round
}
nodes() {
  each_round nodes_round
  header "Nodes of one thread on this machine, tokens/s (llama.cpp: its RPC servers)"
  row "one node, prompt of $prompt" best chain.1.1.1.0.prompt
  row "one node, decode" best chain.1.1.1.0.decode
  row "three nodes, prompt of $prompt" best chain.1.3.1.0.prompt
  row "three nodes, decode" best chain.1.3.1.0.decode
  row "three nodes, 8 streams in all" best chain.1.3.8.0.decode
}

sessions_round() {
  ours many "$model" --nodes 1 --threads "$threads" --sessions 1,4,16 --prompt-tokens 16 --new-tokens $new
  [ ! -x "$llama/llama-batched-bench" ] || "$llama/llama-batched-bench" -m "$model" -t "$threads" -c 4096 -npp 16 -ntg $new \
    -npl 1,4,16 2>/dev/null | awk -F'|' -v t="$threads" '$2 ~ /16/ { gsub(/ /, ""); print "many." t ".1." $4 ".0.decode.theirs", $9 }' \
    >>"$scratch/figures" || say "llama-batched-bench failed"
}
sessions() {
  each_round sessions_round
  header "Sessions decoding at once, one node, $threads threads, tokens/s in all (each of ours has a client with its own LM head)"
  for n in 1 4 16; do row "$n sessions" best many.$threads.1.$n.0.decode; done
}

made() {
  local type file=$scratch/made.gguf
  header "A made model of 7B shape, tokens/s; as much as memory allows is its bytes into what memory reads (above)"
  for type in Q4_K Q4_0 Q8_0; do
    say "made: a file of $type"
    "$here/../bench/synthetic_model.py" "$file" --type $type --shape $shape
    say "made: $type"
    ours $type.made "$file" --local all --threads "$threads" --prompt-tokens 16 --new-tokens 16 --warmup 0
    theirs $type.made.$threads.0.1.0.decode "$file" "$threads" -p 0 -n 16
    row "$type, $(stat -c %s "$file" | awk '{printf "%.2f", $1 / 1e9}') GB, decode, $threads threads" best $type.made.$threads.0.1.0.decode %.2f
    ours $type.made "$file" --nodes 3 --threads 1 --push --prompt-tokens 16 --new-tokens 16 --warmup 0
    row "$type, three nodes of one thread, a third each, decode" best $type.made.1.3.1.0.decode %.2f
    rm "$file"
  done
}

# Each type: the kernels with one row, in turns with reading alone, by bench_kernels; the operations of a model of 1B shape, its
# head included, in the same way by bench_step; and the speed of that model beside llama.cpp.
kernels_of_types() {
  for t in $(count_threads); do
    say "types: kernels, $t threads"
    $PREFIX "$bin/tests/bench_kernels" "$t" "${ISA:-avx512}" wide | awk -v t="$t" 'NF == 13 {
      gsub(/%/, ""); least = $7 < $10 ? $7 : $10; if ($13 < least) least = $13
      print "bytes." $1, $2; print "memory." $1, $3
      print "kernel." t "." $1, $9; print "share." t "." $1, least }' >>"$scratch/figures"
  done
}
model_of_type() { # NAME FILE
  for t in $(count_threads); do
    $PREFIX "$bin/tests/bench_step" "$2" 1 16 "$t" | awk -v at="$t.$1" '$1 == "a" && $2 == "step" {
      print "step." at, $4; print "steps_share." at, $5 }' >>"$scratch/figures"
    ours "types.$1" "$2" --local all --threads "$t" --prompt-tokens $few --new-tokens $new
    theirs "types.$1.$t.0.1.0.prompt" "$2" "$t" -p $few -n 0
    theirs "types.$1.$t.0.1.0.decode" "$2" "$t" -p 0 -n $new
  done
}
# cell A B: both, and their ratio
cell() { awk -v a="$1" -v b="$2" 'BEGIN { if (b == "") printf " %.0f |", a; else printf " %.0f, %.0f, %.2f |", a, b, a / b }'; }
types() {
  local type t few=$((prompt / 4)) file=$scratch/type.gguf shape_1b=$([ $shape = tiny ] && echo tiny || echo 1b)
  local all='Q2_K Q3_K Q4_0 Q4_1 Q4_K Q5_0 Q5_1 Q5_K Q6_K Q8_0 IQ4_NL IQ4_XS MXFP4 NVFP4 TQ1_0 TQ2_0 Q1_0 Q2_0 IQ1_S IQ1_M IQ2_XXS
    IQ2_XS IQ2_S IQ3_XXS IQ3_S Q2_K_M Q3_K_M Q4_K_M Q5_K_M'
  kernels_of_types
  printf '\n### Types of weights, for %s threads; models of %s shape\n' "$(count_threads | paste -sd' ')" $shape_1b
  echo '| | bytes a weight: file, memory | kernels at 4,096 columns, GB/s of the file (least share of reading alone at 2,048 to 8,192) |' \
    'model, GB/s (share) | decode: ours, llama.cpp, ratio | prompt of '$few' |'
  echo '| --- | --- | --- | --- | --- | --- |'
  for type in ${TYPES:-$all}; do
    say "types: $type"
    "$here/../bench/synthetic_model.py" "$file" --type "$type" --shape $shape_1b --blocks 16
    model_of_type "$type" "$file"
    rm "$file"
    printf '| %s |' "$type"
    if [ -n "$(best bytes."$type")" ]; then # else a mix
      printf ' %s, %s |' "$(best bytes."$type")" "$(best memory."$type")"
      for t in $(count_threads); do printf ' %s (%s %%)' "$(best kernel."$t.$type")" "$(best share."$t.$type")"; done
    else
      printf ' | '
    fi
    printf ' |'
    for t in $(count_threads); do printf ' %s (%s %%)' "$(best step."$t.$type")" "$(best steps_share."$t.$type")"; done
    printf ' |'
    for what in decode prompt; do
      for t in $(count_threads); do
        cell "$(best "types.$type.$t.0.1.0.$what.ours")" "$(best "types.$type.$t.0.1.0.$what.theirs")"
      done
    done
    echo
  done
}

long() {
  local depth
  say "long: a context of $far"
  "$here/../bench/synthetic_model.py" "$scratch/long.gguf" --type Q4_0 --shape 135m --blocks 30
  ours long "$scratch/long.gguf" --local all --threads "$threads" --prompt-tokens 16 --new-tokens $new --warmup 0 \
    --context 500,$deep,$far
  header "A context of 16,000: a made model of SmolLM2's shape, $threads threads, decode, ms a token"
  for depth in 500 $deep $far; do
    echo "| depth $depth | $(best long.$threads.0.1.$depth.decode.ours | awk '{ printf "%.2f", 1000 / $1 }') | | |"
  done
  rm "$scratch/long.gguf"
}

touch "$scratch/figures"
echo "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), $(nproc) cores, $(date +%F), best of $rounds rounds, load $(cut -d' ' -f1 /proc/loadavg)"
wanted speed && speed
wanted files && files
wanted start && start_and_memory
wanted quality && quality
wanted nodes && nodes
wanted sessions && sessions
wanted long && long
wanted made && made
wanted types && types
say done
exit 0
