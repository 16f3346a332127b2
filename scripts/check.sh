#!/usr/bin/env bash
# What a compiler does not check: who includes whom, how long files and functions are. Prints each breach; exits 1 if any.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Which folders a folder's files may include, its own and base always. The order of the project: see README.md.
allowed() {
  case $1 in
    base) echo "" ;;
    device | model | net) echo "base" ;;
    kvcache) echo "device base" ;;
    blocks) echo "kvcache device model base" ;;
    node) echo "net blocks kvcache device model base" ;;
    client) echo "net blocks kvcache device model base" ;;
  esac
}
bad=0
breach() { echo "$*"; bad=1; }

for folder in base device model kvcache blocks net node client; do
  for file in $(git ls-files "$folder/*.c" "$folder/*.h"); do
    while IFS= read -r included; do
      to=${included%%/*}
      case " $folder $(allowed "$folder") " in
        *" $to "*) ;;
        *) breach "$file includes $included: $folder/ may include only: $(allowed "$folder")" ;;
      esac
    done < <(sed -n 's/^ *# *include "\([^"]*\)".*/\1/p' "$file")
    lines=$(wc -l <"$file")
    [ "$lines" -le 650 ] || breach "$file has $lines lines: one subject a file, 650 at most"
    awk -v file="$file" '
      /^[a-zA-Z].*[)] *[{]$/ || /^[a-zA-Z].*[^;]$/ && /[(]/ { start = NR }
      /^[}]/ { if (start && NR - start > 75) { printf "%s:%d: a function of %d lines: 75 at most\n", file, start, NR - start; bad = 1 } start = 0 }
      END { exit bad }' "$file" || bad=1
  done
done

# docs/PROTOCOL.md names every message and every field of net/message.h. (Comments hold no `NAME(field`.)
while IFS= read -r field; do
  grep -q "\`$field\`" docs/PROTOCOL.md || breach "docs/PROTOCOL.md does not explain the field '$field' of net/message.h"
done < <(awk '/^#define SN_FIELDS_/ { on = 1 } on { print } !/\\$/ { on = 0 }' net/message.h |
  grep -oE '\b(U64|KEY|SID|STR|LIST|BLOBS)\([a-z_0-9]+' | sed 's/.*(//' | sort -u)
while IFS= read -r message; do
  grep -Eq "^### .*\b$message\b" docs/PROTOCOL.md || breach "docs/PROTOCOL.md does not explain the message '$message'"
done < <(sed -nE 's/^ *X\([A-Z_]+, ([a-z_]+), [01]\).*/\1/p' net/message.h)
exit $bad
