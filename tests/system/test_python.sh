#!/usr/bin/env bash
# The Python package: its tests with numpy alone, its types, and its examples.
. "$(dirname "$0")/lib.sh"
python_tests test_sessions.py test_blocks.py test_examples.py test_one_text.py
cd "$here/../.." && python -m mypy --cache-dir "$scratch/mypy" python/swarmnode >&2 || fail "mypy has complaints"
