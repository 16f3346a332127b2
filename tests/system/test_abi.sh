#!/usr/bin/env bash
# The interface of libswarm is the recorded one, or grew; it exports nothing but its functions, and none of our objects in it
# calls what a library must not call. The comparison itself is shown with a library of empty functions.
. "$(dirname "$0")/lib.sh"
for tool in abidw abidiff nm cc python3; do command -v $tool >/dev/null || skip "needs $tool"; done
library=$bin/libswarm.so sources=$here/../..
[ -f "$library" ] || skip "no libswarm.so in $bin"
record=$sources/scripts/record_abi.sh
nm -D "$library" | grep -q '__[at]san\|__ubsan' && skip "sanitizers export symbols of their own"

# -- the comparison: of libraries of empty functions

# make_library HEADER: writes libempty.so with every function that the header declares.
make_library() {
  python3 - "$1" >"$scratch/empty.c" <<'END'
import re, sys
code = re.sub(r"/\*.*?\*/", "", open(sys.argv[1]).read(), flags=re.S)
print(f'#include "{sys.argv[1]}"')
for result, name, parameters in re.findall(r"^SWARM_API ([^;]*?)(\w+)(\([^;]*\));", code, re.M):
    print(f"{result} {name}{parameters} {{ {'' if result.strip() == 'void' else 'return 0;'} }}")
END
  succeeds cc -g -shared -fPIC -o "$scratch/libempty.so" "$scratch/empty.c"
}
check() { run "$record" --check "$scratch/libempty.so" "$scratch/include/swarm.h" "$scratch/abi"; }
# changed SED: a header that differs so.
changed() {
  sed "$1" "$sources/include/swarm.h" >"$scratch/include/swarm.h"
  cmp -s "$scratch/include/swarm.h" "$sources/include/swarm.h" && fail "'$1' changes nothing in swarm.h"
  make_library "$scratch/include/swarm.h"
}
# breaks PATTERN SED: such a change is refused, by the check and by the recording.
breaks() {
  changed "$2"
  check
  [ $rc = 1 ] && grep -q "$1" "$scratch/run.err" || fail "the check accepts $2"
  refuses 1 "$1" "$record" "$scratch/libempty.so" "$scratch/include/swarm.h" "$scratch/abi"
}
mkdir "$scratch/include"
cp "$sources/include/swarm.h" "$scratch/include"
make_library "$scratch/include/swarm.h"
succeeds "$record" "$scratch/libempty.so" "$scratch/include/swarm.h" "$scratch/abi"
check
[ $rc = 0 ] || fail "a library differs from what was recorded of it"
breaks 'breaks programs' '/^SWARM_API void swarm_free(/d'
breaks 'breaks programs' 's/^SWARM_API void swarm_free(void \*memory/SWARM_API void swarm_free(int memory/'
breaks 'breaks programs' 's/^SWARM_API int32_t swarm_model_width/SWARM_API int64_t swarm_model_width/'
breaks 'breaks programs' 's/SWARM_STOP = 4/SWARM_STOP = 14/'
breaks 'constants are gone' 's/SWARM_TEXT_SPECIAL = 2/SWARM_TEXT_SPECIAL = 4/'
changed 's/^SWARM_API void swarm_free(/SWARM_API void swarm_new_function(int a);\n&/'
check
[ $rc = 1 ] && grep -q 'not recorded' "$scratch/run.err" || fail "an addition that is not recorded is not noticed"
succeeds "$record" "$scratch/libempty.so" "$scratch/include/swarm.h" "$scratch/abi"
check
[ $rc = 0 ] || fail "an addition cannot be recorded"

# -- the library

succeeds "$record" --check "$library"
exported=$(nm -D --defined-only "$library" | awk '{print $3}' | sed 's/@.*//')
others=$(grep -v '^swarm_\|^LIBSWARM_' <<<"$exported")
[ -z "$others" ] || fail "libswarm exports more than swarm_*:" $others
for function in $(sed -n 's/^SWARM_API [^(]*\(swarm_[a-z_]*\)(.*/\1/p' "$sources/include/swarm.h"); do
  grep -qx "$function" <<<"$exported" || fail "swarm.h declares $function, which libswarm does not export"
done

# What a library must not call: it ends no process, prints nothing, handles no signals, reads no environment. The exceptions:
allowed="
hash.c abort              the kernel has no random numbers
kvcache.c abort           an assertion
pages.c abort             an assertion
segment.c abort           an assertion of the guard, which says where
segment.c fprintf         the same
segment.c stderr          the same
terminal.c stdout         sn_terminal_guard, which programs call
terminal.c stderr         the same
thread.c pthread_sigmask  the library's threads leave signals to the program
evidence.c fwrite         into a file
loss_curve.c fprintf      into a file
loss_curve.c fwrite       into a file
"
never='exit|_exit|_Exit|quick_exit|abort|atexit|on_exit|v?f?printf|v?dprintf|puts|putchar|putc|fputs|fputc|fwrite|perror|psignal|stdout|stderr|stdin|__v?[fd]?printf_chk|signal|sigaction|sigprocmask|pthread_sigmask|getenv|secure_getenv|environ|setenv|putenv|unsetenv|fork|vfork|system|popen|chdir|umask|setlocale|srand|rand|srandom|random|dup2|pthread_atfork'
linked=$(readelf -sW "$library" | awk '$4 == "FILE" {print $8}' | sort -u)
found=0
for archive in base device model text kvcache blocks net sharing_hub dht client; do
  while read -r object symbol; do
    found=$((found + 1))
    grep -qx "$object" <<<"$linked" || continue
    grep -q "^$object $symbol\( \|$\)" <<<"$allowed" || fail "$object of libswarm calls $symbol"
  done < <(nm -A "$bin/libsn_$archive.a" 2>/dev/null | sed -nE "s/^[^:]*:([^:]*)\.o: +U ($never)\$/\1 \2/p" |
    sed -E 's/ __([a-z]+)_chk$/ \1/' | sort -u) # the checked forms of _FORTIFY_SOURCE
done
[ $found -gt 5 ] || fail "the archives of libswarm's objects could not be read"
