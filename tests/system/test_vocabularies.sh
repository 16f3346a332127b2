#!/usr/bin/env bash
# Token ids are those of llama.cpp's vectors, over the real vocabularies that lie beside them in its sources, which the package
# llama-cpp-python of PyPI has (77 MB, fetched once). BLOOM's and Falcon 3's are not among them: how their texts are split is compared
# with the reference's engine by test_tokenizer_files (tests/fixtures/tokenizer/pieces.json).
. "$(dirname "$0")/lib.sh"
version=0.3.36
folder=$tools/llama-vocabularies-$version
if [ ! -d "$folder" ]; then
  [ "${SN_TEST_PACKAGES:-}" != few ] || skip "llama.cpp's vocabularies are not fetched with SN_TEST_PACKAGES=few"
  mkdir -p "$tools" && new=$(mktemp -d "$tools/.new.XXXXXX") || fail "no folder"
  timeout 300 $python -m pip download --quiet --no-deps --no-binary llama-cpp-python --disable-pip-version-check --retries 1 -d "$new" \
    "llama-cpp-python==$version" >"$scratch/pip.log" 2>&1 || { rm -rf "$new"; not_fetched "llama.cpp's vocabularies"; }
  mkdir "$new/models" && tar -C "$new/models" --strip-components=4 --wildcards -xzf "$new"/*.tar.gz '*/vendor/llama.cpp/models/ggml-vocab-*' ||
    fail "the package holds no vocabularies"
  mv -T "$new/models" "$folder" 2>/dev/null || [ -d "$folder" ] || fail "no $folder"
  rm -rf "$new"
fi
names=(command-r deepseek-coder deepseek-llm falcon gemma-4 gpt-2 llama-bpe llama-spm mpt phi-3 qwen2 qwen35 refact starcoder)
timeout -k 5 900 $python "$here/../support/vocabulary_vectors.py" "$bin/swarm" "$folder" "${names[@]}" >"$scratch/run.out" 2>"$scratch/run.err" ||
  fail "ids differ from llama.cpp's: $(tail -n 20 "$scratch/run.out")"
[ "$(grep -c ' of ' "$scratch/run.out")" = "${#names[@]}" ] || fail "not every vocabulary was there: $(cat "$scratch/run.out")"
cat "$scratch/run.out"
