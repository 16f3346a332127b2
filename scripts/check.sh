#!/usr/bin/env bash
# What a compiler does not check: who includes whom, lengths, documents (scripts/check.py); clang-format; with --tidy,
# clang-tidy over what the build folder (build) compiles; with --fix, formats instead of complaining.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
tidy=no fix=no
for argument; do
  case $argument in
    --tidy) tidy=yes ;;
    --fix) fix=yes ;;
    *) die "usage: scripts/check.sh [--tidy] [--fix]" ;;
  esac
done

bad=0
python3 scripts/check.py || bad=1

format=$(pinned_tool clang-format "$CLANG_FORMAT") || exit 1
mapfile -t sources < <(git ls-files '*.c' '*.h' '*.cu' '*.cuh' '*.cl' '*.clh')
[ $fix = no ] || "$format" -i "${sources[@]}"
for file in $("$format" --dry-run "${sources[@]}" 2>&1 | sed -n 's/^\([^ :]*\):.*clang-format-violations.*/\1/p' | sort -u); do
  echo "$file is not formatted: scripts/check.sh --fix does it"
  bad=1
done

if [ $tidy = yes ]; then
  [ -f build/compile_commands.json ] || die "--tidy reads build/compile_commands.json: build first"
  linter=$(pinned_tool clang-tidy "$CLANG_TIDY") || exit 1
  mkdir -p build/tidy # the commands without what only GCC knows, or ends its builds
  sed 's/ -fno-ipa-icf//g; s% @[^ ]*strict.options%%g' build/compile_commands.json >build/tidy/compile_commands.json
  git ls-files '*.c' | grep -v '\.inc\.c$\|^tests/support/cuda_stand_in/\|^device/cuda/\|^examples/' |
    xargs -P "$(nproc)" -n 10 "$linter" -p build/tidy --quiet 2>/dev/null || bad=1
fi
exit $bad
