#!/usr/bin/env python3
"""Checks what a compiler does not: includes between rooms, private headers, lengths, words, documents, the protocol, and mutants.

Prints one line for each breach, and exits with 1 if there is any. scripts/check.sh runs it with the checks of format.
"""
import ast
import collections
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# Which rooms (folders) the files of a room may include, beside the room itself and base/. docs/ARCHITECTURE.md explains
# the order. A room stands behind those that it may include.
ROOMS = {
    "base": "",
    "include": "",
    "device": "",
    "device/cpu": "device",
    "device/cuda": "device",
    "device/xpu": "device",
    "model": "",
    "model/peft": "model",
    "text/tokenizer": "model",
    "text/jinja": "text/tokenizer",
    "text/chat": "model text/tokenizer text/jinja",
    "kvcache": "device",
    "blocks": "kvcache device model",
    "net": "",
    "net/transport": "net",
    "net/opendht": "net",
    "net/router": "net",
    "client/net": "model net net/transport",
    "sharing/hub": "model net",
    "sharing/peers": "sharing/hub client/net model net net/transport",
    "gateway/grammar": "",
    "gateway/openai": "include gateway/grammar",
    "gateway/pages": "",
    "gateway/queue": "include",
    "gateway/http": "include gateway/queue gateway/openai gateway/pages",
    "node/engine": "blocks kvcache device model model/peft net net/transport",
    "node/membership": "net net/transport",
    "node/placement": "blocks device model net",
    "node/protocol": "node/engine node/membership node/placement blocks kvcache device model net net/transport",
    "node": "gateway/pages sharing/hub sharing/peers node/engine node/membership node/placement node/protocol blocks kvcache device "
    "model net net/router net/transport",
    "client/routing": "model net",
    "client/chain": "client/net client/routing blocks kvcache device model net net/transport",
    "client/audit": "client/chain client/net client/routing blocks device model net net/transport",
    "client/generate": "client/chain blocks device model text/tokenizer net",
    "client/tune": "client/generate client/chain client/net client/routing blocks device model model/peft text/tokenizer text/chat "
    "net net/transport",
    "client/api": "include client/tune client/generate client/audit client/chain client/net client/routing sharing/hub blocks device "
    "model model/peft text/tokenizer text/chat net net/transport",
    "cli/terminal": "",
    "cli": "cli/terminal gateway/http gateway/queue include",
    "cli/bench": "cli client/api client/tune client/generate client/chain client/net client/routing blocks device model "
    "text/tokenizer net net/transport",
}
# The program stands on the C API (include/swarm.h). What its files include besides, each for a reason that docs/ARCHITECTURE.md
# gives. cli/setup.h opens what is below the API, so it stands here as well.
INNER = {
    "cli/options.h": "client/api/settings.h",
    "cli/chat_answer.c": "client/api/settings.h",
    "cli/chat_commands.c": "client/api/settings.h",
    "cli/io.h": "text/tokenizer/ids.h",
    "cli/setup.h": "client/api/setup.h",
    "cli/setup.c": "cli/setup.h",
    "cli/cmd_eval.c": "client/generate/logprob.h",
    "cli/eval_classifier.c": "cli/setup.h client/tune/loss.h",
    "cli/cmd_forward.c": "cli/setup.h model/safetensors.h",
    "cli/cmd_hash.c": "sharing/hub/manifest.h net/identity.h sharing/hub/trusted_manifest.h",
    "cli/cmd_models.c": "sharing/hub/cached.h sharing/hub/environment.h sharing/hub/manifest.h",
    "cli/cmd_serve.c": "net/identity.h",
    "cli/cmd_keygen.c": "net/identity.h net/transport/private_swarm.h",
    "cli/cmd_route.c": "cli/setup.h client/chain/chain.h",
    "cli/cmd_tune.c": "cli/setup.h",
    "cli/cmd_verify.c": "cli/setup.h client/audit/evidence.h model/source.h net/directory.h",
    "cli/fetch_model.c": "sharing/hub/cached.h sharing/hub/environment.h model/source.h sharing/hub/trusted_manifest.h sharing/peers/swarm_model.h",
}
FUNCTION_LINES_MAX, PARAMETERS_MAX, DESIGN_NOTE_LINES = 75, 7, 200

breaches = 0


def breach(text):
    global breaches
    breaches += 1
    print(text)


def tracked(*patterns):
    out = subprocess.run(["git", "ls-files", "--", *patterns], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [f for f in out.splitlines() if os.path.isfile(os.path.join(ROOT, f))]


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf8") as f:
        return f.read()


def check_includes(path, text):
    """Directions between rooms, and private headers."""
    room = os.path.dirname(path)
    may = ROOMS[room].split() + [room, "base"]
    for line in re.findall(r"^[ \t]*#[ \t]*include \"[^\"]+\".*", text, re.M):
        included = re.search(r'"([^"]+)"', line).group(1)
        to = os.path.dirname(included)
        if included in INNER.get(path, "").split():
            continue
        if room == "cli" and included == "cli/setup.h":
            breach(f"{path} includes cli/setup.h: stand on include/swarm.h, or say why not (INNER in scripts/check.py)")
        if to not in may:
            breach(f"{path} includes {included}: {room}/ may include only {', '.join(sorted(may))} (scripts/check.py)")
        if included.endswith("_private.h") and to != room:
            breach(f"{path} includes {included}, which is private to {to}/")
    for header in INNER.get(path, "").split():
        if f'"{header}"' not in text:
            breach(f"{path} no longer includes {header}: take it out of INNER (scripts/check.py)")


def check_test_includes(path, text):
    """A test that looks behind a room's public headers says so, with the reason, on the line that includes them."""
    for line in re.findall(r"^[ \t]*#[ \t]*include \"[^\"]+_private\.h\".*", text, re.M):
        if os.path.dirname(re.search(r'"([^"]+)"', line).group(1)) != os.path.dirname(path) and "/* private: " not in line:
            breach(f"{path}: '{line.strip()}' needs a comment /* private: why this test looks inside */")


def code_only(text):
    """The text with comments and literals blanked out, line breaks kept."""
    def blank(m):
        return re.sub(r"[^\n]", " ", m.group(0))
    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', blank, text, flags=re.S)


def parameters(signature):
    inside = signature[signature.index("(") + 1 : signature.rindex(")")]
    depth, count = 0, 1
    for c in inside:
        depth += (c == "(") - (c == ")")
        count += c == "," and depth == 0
    return 0 if inside.strip() in ("", "void") else count


def device_operations():
    """The parameter lists of sn_device_ops. A backend's function has the list of its entry, however long that is: its
    length is decided once, in the table, and not again in each backend."""
    table = re.search(r"struct sn_device_ops \{(.*?)^\}", code_only(read("device/device.h")), re.M | re.S).group(1)
    return {" ".join(p.split()) for p in re.findall(r"\(\*\w+\)\(([^()]*)\);", table)}


DEVICE_OPERATIONS = device_operations()


def check_functions(path, text):
    """Length of functions and number of their parameters. A reason for more stands in a comment /* N parameters: ... */."""
    code = code_only(text)
    for m in re.finditer(r"^[A-Za-z_][^\n;{}=#]*(?:\n[^\n;{}=#]*)*?\)\s*\{\n(.*?)^\}", code, re.M | re.S):
        head = m.group(0)[: m.group(0).index("{")]
        begin = max([0, *(k.start() for k in re.finditer(r"^\S", head, re.M))])  # macros without a ';' may come before
        line = code[: m.start() + begin].count("\n") + 1
        head = head[begin:]
        name = (re.findall(r"(\w+)\s*\(", head) or ["?"])[0]
        if re.match(r"(Test|ParameterizedTest|TestSuite)\b", head):
            continue
        lines = m.group(1).count("\n")
        if lines > FUNCTION_LINES_MAX:
            breach(f"{path}:{line}: {name} has {lines} lines: {FUNCTION_LINES_MAX} at most")
        try:
            n = parameters(head[head.index(name) :])
        except ValueError:
            continue
        if path.startswith("device/") and " ".join(head[head.index("(") + 1 : head.rindex(")")].split()) in DEVICE_OPERATIONS:
            continue
        before = text.split("\n")[max(0, line - 8) : line]
        if n > PARAMETERS_MAX + ("sn_err *err" in head or "swarm_error **error" in head) and not any("parameters:" in b for b in before):
            breach(f"{path}:{line}: {name} takes {n} parameters: {PARAMETERS_MAX} at most beside err, or a reason above it")


def check_file(path, text):
    lines = text.count("\n")
    if lines > DESIGN_NOTE_LINES and path.endswith(".c") and not text.startswith("/*"):
        breach(f"{path} has {lines} lines and no comment at its top that says how it works")
    if path.endswith(".h") and not path.endswith(".inc.h"):
        guard = "SWARM_H" if path == "include/swarm.h" else "SN_" + re.sub(r"[/.]", "_", path).upper()
        if f"#define {guard}" not in text:
            breach(f"{path}: its include guard is not {guard}")


def check_made_documents():
    """What the documents have from the sources is current."""
    made = subprocess.run([sys.executable, "scripts/make_docs.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    if made.returncode:
        breach(made.stderr.strip())


def anchors(text):
    """The anchors of a page's headings, as GitHub makes them."""
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in re.findall(r"^#+ (.*)$", text, re.M)}


def check_tables():
    """Text right behind a table's row, or a heading right behind text, becomes a part of what is before it."""
    for page in tracked("*.md"):
        code, before = False, ""
        for number, line in enumerate(read(page).splitlines(), 1):
            code ^= line.startswith("```")
            if not code and line and ((before.startswith("|") and not line.startswith("|")) or (before and re.match("#+ ", line))):
                breach(f"{page}:{number}: leave a line free before it")
            before = line


def check_documents():
    """Every link of a page leads to a file and a heading that exist, and every file that it names in `quotes` exists."""
    tops = "|".join(sorted({f.split("/")[0] for f in tracked("*/*")}))
    for page in tracked("*.md"):
        text = read(page)
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            path, _, anchor = link.partition("#")
            target = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
            if path.startswith("http"):
                continue
            if not os.path.exists(os.path.join(ROOT, target)):
                breach(f"{page}: the link {link} leads nowhere")
            elif anchor and target.endswith(".md") and anchor not in anchors(read(target)):
                breach(f"{page}: {target} has no heading #{anchor}")
        for name in re.findall(rf"`((?:{tops})/[\w./-]+)`", "" if page == "CHANGELOG.md" else text):
            if not re.search(r"NAME|_X\b", name) and not os.path.exists(os.path.join(ROOT, name)):
                breach(f"{page}: names {name}, which does not exist")


def check_named_tests():
    """The tests that docs/SECURITY.md names behind `Tests:` exist: suites of unit tests, and files."""
    known = {os.path.basename(f) for f in tracked("tests/*")}
    for path in tracked("tests/*.c"):
        known |= set(re.findall(r"^(?:Parameterized)?Test\((?:struct [^,]*, |[\w *]+ \*?\w+, )?(\w+),", read(path), re.M))
    for names in re.findall(r"Tests:\s((?:\s*`[^`]+`,?)+)", read("docs/SECURITY.md")):
        for name in re.findall(r"`([^`]+)`", names):
            if name not in known:
                breach(f"docs/SECURITY.md names the test {name}, which does not exist")


def check_python():
    """The Python package: nothing but its own modules, numpy and the standard library where no extra is named, and the
    declarations of include/swarm.h."""
    extras = {"python/swarmnode/nn.py": {"torch"}, "python/swarmnode/hf.py": {"safetensors", "torch", "transformers"}}
    for path in tracked("python/*.py", "examples/python/*.py"):
        text = read(path)
        if path.startswith("python/swarmnode/"):
            nodes = list(ast.walk(ast.parse(text)))
            imported = {a.name.split(".")[0] for n in nodes if isinstance(n, ast.Import) for a in n.names}
            imported |= {n.module.split(".")[0] for n in nodes if isinstance(n, ast.ImportFrom) and not n.level and n.module}
            for name in sorted(imported - sys.stdlib_module_names - {"numpy"} - extras.get(path, set())):
                breach(f"{path} imports {name}: the package needs numpy alone (scripts/check.py)")
    made = subprocess.run([sys.executable, "scripts/python_binding.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    if made.returncode:
        breach(made.stderr.strip())


def check_mutants():
    """What each mutant removes stands once in its file, and its test exists (scripts/mutants.py)."""
    checked = subprocess.run([sys.executable, "scripts/mutants.py", "check"], cwd=ROOT, capture_output=True, text=True)
    for line in (checked.stdout + checked.stderr).splitlines():
        breach(line)


# Functions that only tests call: they read state that nothing else shows, or put a transport of theirs in place.
FOR_TESTS = set(
    """sn_answer_read sn_device_describe sn_directory_add sn_generator_length sn_link_open_transport
    sn_prefix_cache_pages_evictable sn_served_model_ending sn_served_model_kept_bytes sn_span_experts sn_status_name sn_ties_bytes
    sn_ties_holders sn_trainer_saved_bytes""".split()
)


def check_callers(tops):
    """A function of a header is called by the programs, not by tests alone."""
    sources = {path: code_only(read(path)) for path in tracked(*(f"{top}/*.{end}" for top in tops for end in ("c", "h", "cu")))}
    words = collections.Counter(word for text in sources.values() for word in re.findall(r"\bsn_\w+", text))
    for path, text in sources.items():
        for name in re.findall(r"^[a-z][^\n(;{]*[ *](sn_\w+)\(", text, re.M) if path.endswith(".h") and "static inline" not in text else ():
            if words[name] <= 2 and name not in FOR_TESTS:
                breach(f"{path}: nothing but tests calls {name}(): delete it, or move it into tests/support")


def check_threads(path, text):
    """Threads of libswarm leave the signals of a host program alone: sn_thread_start starts them."""
    programs = ("node/", "gateway/", "cli/")
    if path != "base/thread.c" and not path.startswith(programs) and re.search(r"\bpthread_create\b|\bthrd_create\b", code_only(text)):
        breach(f"{path} starts a thread that takes the signals of a host program: use sn_thread_start (base/thread.h)")


def check_rooms():
    """Includes go one way: a room may include those that stand before it."""
    before = []
    for room, may in ROOMS.items():
        for other in sorted(set(may.split()) - set(before)):
            breach(f"scripts/check.py: {room}/ may include {other}/, which does not stand before it in ROOMS")
        before.append(room)


def main():
    check_rooms()
    tops = sorted({r.split("/")[0] for r in ROOMS})
    for path in tracked(*(f"{top}/*.{end}" for top in tops for end in ("cu", "cuh", "cl", "clh"))):
        check_includes(path, read(path))
    for path in tracked(*(f"{top}/*.{end}" for top in tops for end in "ch")):
        if os.path.dirname(path) not in ROOMS:
            breach(f"{path} lies in a folder that scripts/check.py does not know: add its room")
            continue
        text = read(path)
        check_includes(path, text)
        check_file(path, text)
        check_functions(path, text)
        check_threads(path, text)
    for path in tracked("tests/*.c", "tests/*.h", "tests/*.cc", "examples/*.c"):
        check_test_includes(path, read(path))
    check_callers(tops)
    check_made_documents()
    check_tables()
    check_documents()
    check_named_tests()
    check_python()
    check_mutants()
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
