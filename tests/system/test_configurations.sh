#!/usr/bin/env bash
# What configurations mean is what they mean to transformers: fields of three families left out, changed and added
# (tests/support/config_differences.py, which takes any small models by hand). Runs where PyTorch and transformers are: SN_TEST_PYTHON has
# them, or the tests of the Python package fetched them.
. "$(dirname "$0")/lib.sh"
transformers_python
golden=$fixtures/golden
timeout -k 5 900 "$python" "$here/../support/config_differences.py" "$bin/swarm" "$scratch/changed" "$golden/llama" "$golden/gemma3" "$golden/glm4_moe" \
  --every 4 >"$scratch/out" 2>"$scratch/configurations.err" || fail "swarm computes otherwise than transformers: $(tail -n 20 "$scratch/out")"
tail -n 1 "$scratch/out"
