#!/usr/bin/env bash
# The pages in a real Chromium: over canned answers, hostile ones too (tests/pages/test_pages.py).
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
for need in chromium chromedriver; do [ -x "/usr/bin/$need" ] || skip "there is no /usr/bin/$need: install chromium and chromium-driver"; done
python3 -c 'import selenium' 2>/dev/null || skip "python3-selenium is not installed"
timeout 400 python3 "$here/../pages/test_pages.py" "$@" >"$scratch/pages.err" 2>&1 || fail "the pages do not work"
