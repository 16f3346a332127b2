#!/usr/bin/env bash
# Token ids are those of llama.cpp's vectors, over the real vocabularies that lie beside them in its sources, which the package
# llama-cpp-python of PyPI has (77 MB, fetched once). BLOOM's and Falcon 3's are not among them: how their texts are split is compared
# with the reference's engine by test_tokenizer_files (tests/fixtures/tokenizer/pieces.json).
. "$(dirname "$0")/lib.sh"
llama_sources
names=(command-r deepseek-coder deepseek-llm falcon gemma-4 gpt-2 llama-bpe llama-spm mpt phi-3 qwen2 qwen35 refact starcoder)
timeout -k 5 900 $python "$here/../support/vocabulary_vectors.py" "$bin/swarm" "$llama/models" "${names[@]}" >"$scratch/run.out" 2>"$scratch/run.err" ||
  fail "ids differ from llama.cpp's: $(tail -n 20 "$scratch/run.out")"
[ "$(grep -c ' of ' "$scratch/run.out")" = "${#names[@]}" ] || fail "not every vocabulary was there: $(cat "$scratch/run.out")"
cat "$scratch/run.out"
