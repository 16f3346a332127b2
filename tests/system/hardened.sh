# hardened FILE...: fails unless each program or library has what cmake/hardening.cmake compiles into it. Sourced behind lib.sh.
is_sanitized() { "$bin/swarm" --version --json | grep -q '"sanitizers": *"[a-z]'; }

# times FILE BYTES: how often these bytes stand in a file, given as in $'\xf3'.
times() { LC_ALL=C grep -aoF "$2" "$1" | wc -l; }

hardened() {
  local file symbols
  command -v readelf >/dev/null || skip "needs readelf (binutils)"
  for file; do
    readelf --dyn-syms -W "$file" >"$scratch/symbols" 2>/dev/null
    grep -q '__stack_chk_fail' "$scratch/symbols" || fail "$file: no canaries on the stack (-fstack-protector-strong)"
    [ "$(grep -c '_chk@' "$scratch/symbols")" -ge 5 ] || fail "$file: copies are not checked (_FORTIFY_SOURCE)"
    readelf -dW "$file" | grep -q 'FLAGS.*NOW' || fail "$file: functions are looked up while it runs (-z now)"
    readelf -lW "$file" >"$scratch/segments"
    grep -q GNU_RELRO "$scratch/segments" || fail "$file: its tables stay writable (-z relro)"
    grep 'GNU_STACK' "$scratch/segments" | grep -q 'RW ' || fail "$file: its stack can be executed"
    readelf -hW "$file" | grep -q 'Type: *DYN' || fail "$file: lies at a fixed address (PIE)"
    case $(uname -m) in
      x86_64) # endbr64; orq $0, (%rsp)
        [ "$(times "$file" $'\xf3\x0f\x1e\xfa')" -ge 500 ] || fail "$file: targets of indirect jumps are not marked (-fcf-protection)"
        [ "$(times "$file" $'\x48\x83\x0c\x24')" -ge 5 ] || fail "$file: large frames may jump over a guard page (-fstack-clash-protection)" ;;
      aarch64) # paciasp
        [ "$(times "$file" $'\x3f\x23\x03\xd5')" -ge 500 ] || fail "$file: return addresses are not signed (-mbranch-protection)" ;;
    esac
  done
}
