#!/usr/bin/env bash
# GGUF files that llama.cpp's own converter makes of a folder give the logits of transformers: all families of tests/fixtures/golden, but
# serial Falcon, which the converter does not take, and Mistral 4, which it takes and transformers runs in its wrapper alone. Runs where PyTorch and transformers are: SN_TEST_PYTHON has them, or the tests of the
# Python package fetched them.
. "$(dirname "$0")/lib.sh"
transformers_python
llama_sources
models=()
for folder in "$fixtures"/golden/*/; do [[ $folder = */falcon_serial/ || $folder = */mistral4/ ]] || models+=("$folder"); done
mkdir "$scratch/converted"
timeout -k 5 900 "$python" "$here/../support/converted_models.py" "$bin/swarm" "$llama" "$scratch/converted" "${models[@]}" >"$scratch/out" \
  2>"$scratch/converter.err" || fail "converted files give other logits than transformers: $(tail -n 40 "$scratch/out")"
tail -n 1 "$scratch/out"
