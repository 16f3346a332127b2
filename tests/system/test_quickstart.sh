#!/usr/bin/env bash
# README's first command in a copy of the sources, as someone runs it who has just cloned them. ccache has the objects of the build
# beside, so that it does not compile everything once more.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
command -v ccache >/dev/null || skip "there is no ccache, and compiling everything again takes minutes"
[ -n "${SN_TEST_MODEL:-}" ] || skip "the real model could not be fetched"
cd "$here/../.." || exit 1
mkdir "$scratch/clone"
git ls-files -co --exclude-standard -z | xargs -0 cp -a --parents -t "$scratch/clone" || fail "the sources cannot be copied"
cd "$scratch/clone" || exit 1
if [ -n "$cache" ]; then SWARM_CACHE=$cache; else unset SWARM_CACHE; fi
export CCACHE_BASEDIR=$scratch/clone CCACHE_NOHASHDIR=1
# A port that is taken is noticed before anything is built.
start taken python3 -c 'import socket, time
s = socket.create_server(("127.0.0.1", 0))
print(s.getsockname()[1], flush=True)
time.sleep(600)'
until [ -s "$scratch/taken.out" ]; do pause 0.02; done
refuses 1 "^quickstart.sh: another program listens at 127.0.0.1:$(cat "$scratch/taken.out"): " scripts/quickstart.sh --serve --listen "127.0.0.1:$(cat "$scratch/taken.out")"
[ ! -e build ] || fail "it was built before the port was looked at"
kill_node taken

# Where there is no GPU, no kernels are compiled for one, whatever compiler is found.
if ! command -v nvidia-smi >/dev/null; then
  mkdir -p "$scratch/cuda" && printf '#!/bin/sh\necho "nvcc was started" >&2; exit 1\n' >"$scratch/cuda/nvcc" && chmod +x "$scratch/cuda/nvcc"
  PATH=$scratch/cuda:$PATH
fi
timeout -k 5 500 nice scripts/quickstart.sh --prompt "Once upon a time" --max-tokens 8 >"$scratch/text" 2>"$scratch/quickstart.err" </dev/null ||
  fail "the quickstart ended with $?"
grep -q "[a-z] [a-z]" "$scratch/text" || fail "the quickstart's text is '$(cat "$scratch/text")'"
[ "$(grep -c '^  node[0-2] at 127.0.0.1:' "$scratch/quickstart.err")" = 3 ] || fail "it did not name its three nodes"

# What README says next: an installation, with which a program is built.
succeeds cmake --install build --prefix "$scratch/prefix"
PKG_CONFIG_PATH=$(dirname "$(find "$scratch/prefix" -name swarm.pc)") && export PKG_CONFIG_PATH
succeeds cc examples/generate.c -o "$scratch/generate" $(pkg-config --cflags --libs swarm)
LD_LIBRARY_PATH=$(dirname "$PKG_CONFIG_PATH") refuses 2 '^usage: ' "$scratch/generate"

# With --serve, its pages and the API are open at the address that it prints, until it is ended, with all that it started.
setsid scripts/quickstart.sh --serve --listen 127.0.0.1:0 >"$scratch/serve.out" 2>"$scratch/serve.err" </dev/null &
pid[serve]=$!
until=$(($(now_ms) + 100000))
until url=$(sed -n 's/^OpenAI API: *//p' "$scratch/serve.out" 2>/dev/null) && [ -n "$url" ]; do
  kill -0 "${pid[serve]}" 2>/dev/null && [ "$(now_ms)" -lt "$until" ] || fail "quickstart --serve printed no address"
  pause 0.1
done
python3 - "$url" <<'PY' || fail "quickstart --serve does not answer"
import json, sys, urllib.request
answer = lambda path, data=None: urllib.request.urlopen(sys.argv[1].removesuffix("/v1") + path, data, timeout=60).read()
assert b"<title>" in answer("/") and b"<title>" in answer("/swarm")
name = json.loads(answer("/v1/models"))["data"][0]["id"]
request = {"model": name, "prompt": "Once upon a time", "max_tokens": 4}
assert json.loads(answer("/v1/completions", json.dumps(request).encode()))["choices"][0]["text"]
PY
group=${pid[serve]}
signal serve TERM
wait_end serve 60
[ $rc = 130 ] || fail "quickstart --serve ended with $rc"
! kill -0 -- "-$group" 2>/dev/null || fail "quickstart --serve left a process behind"
