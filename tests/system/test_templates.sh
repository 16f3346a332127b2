#!/usr/bin/env bash
# Chat templates of published models, which llama.cpp's sources hold, render conversations as transformers does, and the calls that they
# write are read again (tests/support/templates.py).
. "$(dirname "$0")/lib.sh"
transformers_python
llama_sources
timeout -k 5 300 "$python" "$here/../support/templates.py" "$bin/chat_format" "$llama/models/templates" >"$scratch/out" 2>"$scratch/templates.err" ||
  fail "templates differ: $(tail -n 20 "$scratch/out" "$scratch/templates.err")"
tail -n 1 "$scratch/out"
