#!/usr/bin/env bash
# Schemas drawn at random: what their grammars write is what jsonschema allows, and the other way round (schema_texts.py).
# SN_TEST_SCHEMAS and SN_TEST_SEED draw others.
. "$(dirname "$0")/lib.sh"
packages=$(fetched jsonschema-1 60 jsonschema==4.26.0) || not_fetched jsonschema
export PYTHONPATH=$packages PYTHONDONTWRITEBYTECODE=1
timeout -k 2 "${SN_TEST_SECONDS:-400}" python3 "$here/schema_texts.py" "$bin/schema_texts" "${SN_TEST_SCHEMAS:-100}" "${SN_TEST_SEED:-1}" >"$scratch/texts" ||
  { cut -c1-600 "$scratch/texts" | tail -n 40 >&2; fail "a grammar and jsonschema differ"; }
cat "$scratch/texts"
echo ok
