#!/usr/bin/env bash
# Hubs that fail in one way all the time; processes that are killed while they fetch; a disk that is full. What is there afterwards is
# right, and is not fetched again.
. "$(dirname "$0")/lib.sh"
[ -n "${SN_TEST_MODEL:-}" ] || skip "a model with many blocks: SN_TEST_MODEL"

hub=$scratch/hub
mkdir -p "$hub/org/real" "$hub/org/rope"
ln "$SN_TEST_MODEL" "$hub/org/real/model.gguf" 2>/dev/null || cp "$SN_TEST_MODEL" "$hub/org/real/model.gguf"
size=$(stat -c %s "$hub/org/real/model.gguf")
ids=(--ids-file "$scratch/ids" --max-tokens 1)
echo '[1, 2, 3]' >"$scratch/ids"

# fetch [option...]: block 20, embedding and LM head; no node has the rest, so the command fails after it.
fetch() { run "$bin/swarm" generate --model org/real --local 20:21 --join 127.0.0.1:9 --timeout 1s "${ids[@]}" "$@"; }
# is_right [MODEL FILE]: what is here of the file has the bytes of the model; prints how many.
is_right() {
  python3 - "${1:-$hub/org/real/model.gguf}" "${2:-$(echo "$SWARM_CACHE"/models/org--real/*/model.gguf)}" <<'PY' || fail "what was fetched is not what the hub has"
import os, sys
whole, part = (open(p, "rb") for p in sys.argv[1:])
total, ranges = 0, [(0, os.path.getsize(sys.argv[1]))]
if os.path.exists(sys.argv[2] + ".ranges"):
    ranges = [tuple(map(int, l.split())) for l in open(sys.argv[2] + ".ranges").readlines()[1:]]
for begin, end in ranges:
    part.seek(begin), whole.seek(begin)
    assert part.read(end - begin) == whole.read(end - begin), (begin, end)
    total += end - begin
print(total)
PY
}

for fault in truncated whole gzip silent; do
  start_hub "$hub" --fault $fault
  fetch
  grep -q 'cannot be fetched\|answers [0-9]\|block 20:' "$scratch/run.err" && fail "$fault: $(cat "$scratch/run.err")"
  [ "$(is_right)" -gt 30000000 ] || fail "$fault: not everything was fetched"
  kill_node hub
  rm -rf "$SWARM_CACHE"
done
# A list of files that says no sizes: each file's own answer does. Without the hub, the file that is here.
start_hub "$hub" --fault sizeless
fetch
[ "$(is_right)" -gt 30000000 ] || fail "a list without sizes: not everything was fetched: $(cat "$scratch/run.err")"
kill_node hub
fetch
grep -q 'cannot be fetched\|cannot be read' "$scratch/run.err" && fail "a list without sizes, and no hub: $(cat "$scratch/run.err")"
rm -rf "$SWARM_CACHE"
start_hub "$hub" --fault other
fetch
tail -n 1 "$scratch/run.err" | grep -q 'sends other bytes than were asked for' || fail "other bytes were taken: $(cat "$scratch/run.err")"
kill_node hub
rm -rf "$SWARM_CACHE"
start_hub "$hub" --fault changes # a URL has no commit: its version is its ETag
refuses 2 'has changed while it was fetched' "$bin/swarm" generate --model "$store/org/real/model.gguf" --local all "${ids[@]}"
# What follows the ? may be a signature: no failure shows it.
refuses 2 'model.gguf redirects without end' "$bin/swarm" generate --model "$store/loop/model.gguf?signature=1" --local all "${ids[@]}"
kill_node hub
rm -rf "$SWARM_CACHE"

# A process that is killed while it fetches, here in the midst of the embedding: at most 8 MiB are fetched twice.
start_hub "$hub" --rate 5000000
start killed "$bin/swarm" generate --model org/real --local all "${ids[@]}"
has_sent() { [ "$(hub_count bytes)" -gt "$1" ]; }
wait_until 60 has_sent 22000000
kill_node killed
kept=$(is_right)
[ "$kept" -gt 12000000 ] || fail "of 22 MB a killed process has kept $kept bytes"
kill_node hub
start_hub "$hub"
succeeds "$bin/swarm" generate --model org/real --local all "${ids[@]}"
bytes=$(hub_count bytes)
[ "$bytes" -le $((size - kept + 1048576)) ] || fail "$kept bytes of $size were here, and $bytes were fetched"
[ "$(is_right)" -gt $((size - 1048576)) ] || fail "not everything is here"
rm -rf "$SWARM_CACHE" "$HF_HOME"

# A full disk is one sentence, and what was saved before stays.
if unshare -Urm true 2>/dev/null; then
  mkdir -p "$scratch/small"
  unshare -Urm bash -s "$scratch" "$bin" "${ids[@]}" <<'END' || fail "a full disk: $(cat "$scratch/full.err" "$scratch/full.2")"
scratch=$1 bin=$2
shift 2
mount -t tmpfs -o size=40m tmpfs "$scratch/small" || exit 0
"$bin/swarm" generate --model org/real --local all --cache "$scratch/small" "$@" >/dev/null 2>"$scratch/full.err"
[ $? = 3 ] && tail -n 1 "$scratch/full.err" | grep -q 'cannot be written: No space left' || exit 1
cp "$scratch"/small/models/org--real/*/model.gguf.ranges "$scratch/full.ranges" || exit 1
mount -o remount,size=200m "$scratch/small"
"$bin/swarm" generate --model org/real --local all --cache "$scratch/small" "$@" >/dev/null 2>"$scratch/full.2"
END
  if [ -e "$scratch/full.ranges" ]; then
    kept=$(awk 'NR > 1 { n += $2 - $1 } END { print n }' "$scratch/full.ranges")
    [ "$kept" -gt 20000000 ] || fail "of 40 MiB a full disk has kept $kept bytes"
    bytes=$(($(hub_count bytes) - bytes))
    [ "$bytes" -lt $((size + 50000000 - kept)) ] || fail "after the disk was full, $bytes bytes were fetched for $size"
  else
    echo "not tested: a full disk (no tmpfs can be mounted)"
  fi
else
  echo "not tested: a full disk (no namespaces)"
fi

# A GGUF file with rope factors in a tensor, which opening reads, behind all blocks.
python3 - "$SN_TEST_MODEL" "$hub/org/rope/model.gguf" <<'PY' || fail "no file with rope factors"
import struct, sys
data = open(sys.argv[1], "rb").read()
n_tensors, n_values = struct.unpack_from("<QQ", data, 8)
at = 24
def text():
    global at
    n, = struct.unpack_from("<Q", data, at)
    at += 8 + n
    return data[at - n : at].decode()
sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
def value(kind):
    global at
    if kind == 8:
        text()
    elif kind == 9:
        of, n = struct.unpack_from("<IQ", data, at)
        at += 12
        for _ in range(n):
            value(of)
    else:
        at += sizes[kind]
for _ in range(n_values):
    text()
    kind, = struct.unpack_from("<I", data, at)
    at += 4
    value(kind)
for _ in range(n_tensors):
    text()
    dims, = struct.unpack_from("<I", data, at)
    at += 4 + 8 * dims + 12
up = lambda n: (n + 31) // 32 * 32
body = data[up(at):]
name = b"rope_freqs.weight"
info = struct.pack("<Q", len(name)) + name + struct.pack("<IQIQ", 1, 32, 0, up(len(body)))
head = data[:8] + struct.pack("<Q", n_tensors + 1) + data[16:at] + info
out = head.ljust(up(len(head)), b"\0") + body.ljust(up(len(body)), b"\0") + struct.pack("<32f", *[1.0] * 16, *[2.0] * 16)
open(sys.argv[2], "wb").write(out)
PY
say=(--prompt "The capital of France is" --max-tokens 6 --temperature 0)
succeeds "$bin/swarm" generate --model "$hub/org/rope/model.gguf" --local all "${say[@]}"
cp "$scratch/run.out" "$scratch/expected"
before=$(hub_count bytes)
start_node a org/rope 10:12
start_node b "$hub/org/rope/model.gguf" 0:10
wait_ready a b
start_node c "$hub/org/rope/model.gguf" 12:30 --join "${address[a]}" --join "${address[b]}"
wait_ready c
bytes=$(($(hub_count bytes) - before))
[ "$bytes" -lt 12000000 ] || fail "2 of 30 blocks with rope factors took $bytes bytes"
is_right "$hub/org/rope/model.gguf" "$(echo "$SWARM_CACHE"/models/org--rope/*/model.gguf)" >/dev/null
succeeds "$bin/swarm" generate --model org/rope --join "${address[c]}" "${say[@]}"
cmp -s "$scratch/run.out" "$scratch/expected" || fail "the text with rope factors differs"
for name in a b c; do stop_node $name; done
echo ok
