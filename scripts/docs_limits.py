"""The table of limits of docs/SECURITY.md: what each bounds is said here, its value and its file come from the sources."""
import os
import re
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# subject: (what is bounded, unit, constant, and its file where other files have one of the same name).
# Units: "" counts, "B" bytes, "us", "ms" and "s" times.
LIMITS = {
    "connections of a node": [
        ("connections; half of the process's descriptors where that is less", "", "CAPACITY_MAX listener.c"),
        ("handshakes of one network address at once", "", "SN_HANDSHAKE_BURST"),
        ("then in a second", "", "SN_HANDSHAKES_PER_S"),
        ("of all addresses", "", "SN_ALL_HANDSHAKES_PER_S"),
        ("network addresses that are remembered for such rates", "", "SN_ADDRESS_LIMIT_MAX"),
        ("a handshake takes", "us", "HANDSHAKE_US"),
        ("the first message takes, when half of the places are taken", "us", "SILENT_US"),
        ("silence, then the peer counts as dead", "us", "DEAD_US listener_thread.c"),
        ("messages of a connection that wait to be handled", "", "RECEIVED_MAX"),
        ("the same in bytes", "B", "RECEIVED_BYTES_MAX"),
        ("replies that wait for a connection", "", "SENT_MAX"),
        ("the same in bytes", "B", "SENT_BYTES_MAX"),
        ("a reply is sealed in pieces of", "B", "PIECE_BYTES"),
        ("memory of an idle connection's output", "B", "OUT_KEPT_MAX"),
        ("answers by UDP to one network address at once", "", "ANSWERS_BURST"),
        ("then in a second", "", "ANSWERS_PER_S"),
        ("to all addresses", "", "ALL_ANSWERS_PER_S"),
    ],
    "messages": [
        ("the map of a message", "B", "SN_MAP_SIZE_MAX"),
        ("its tensor", "B", "SN_TENSOR_SIZE_MAX"),
        ("nesting of maps and arrays", "", "SN_MSGPACK_DEPTH_MAX"),
        ("messages without work, of one connection at once", "", "SN_CHARGED_BURST"),
        ("then in a second", "", "SN_CHARGED_PER_S"),
        ("of all in a second; beyond it each has the next two", "", "SN_ALL_CHARGED_PER_S"),
        ("of one connection at once then", "", "SN_CROWDED_BURST"),
        ("and in a second", "", "SN_CROWDED_PER_S"),
        ("steps of a proven node that were in vain, for each that counts", "", "BROUGHT_PER_CHARGE"),
    ],
    "sessions": [
        ("a session outlives its owner's connection", "us", "SN_OWNER_GONE_US"),
        ("an unused session is safe from newcomers", "us", "SN_UNUSED_SESSION_US"),
        ("unused sessions of a client of which one makes room at once", "", "HOARD_MIN"),
        ("steps that wait at a node beside the one in computation", "", "SN_PREFILL_DEPTH_MAX"),
        ("a reply is kept to be repeated", "us", "SN_REPLY_KEPT_US"),
        ("tokens of KV pages in one message", "", "SN_KV_TRANSFER_TOKENS_MAX"),
        ("the same in bytes", "B", "SN_KV_TRANSFER_SIZE_MAX"),
        ("reads of a session's KV pages at a time", "", "GETS_MAX kv_exchange.c"),
        ("nodes to which one session is copied", "", "MIGRATIONS_MAX"),
        ("an idle session of a client with most KV pages gives its own", "us", "HOARD_IDLE_US"),
        ("log lines about sessions in ten seconds", "", "LINES open.c"),
    ],
    "the device": [
        ("rows of a step up to which it counts as decoding", "", "SN_DECODE_ROWS_MAX"),
        ("time that prompts add to a pass in which others decode", "us", "SN_PREFILL_DELAY_US"),
        ("so many times that, where many prompts wait", "", "SN_PREFILL_DELAYS_MAX"),
        ("steps have so many times the time of training", "", "STEPS_SHARE"),
        ("training batches of one client", "", "BATCHES_PER_CLIENT_MAX"),
        ("of all clients", "", "SN_TRAINING_BATCHES_MAX"),
        ("rows of a training batch", "", "BATCH_ROWS_MAX"),
        ("adapters that a node holds", "", "SN_ADAPTER_ENTRIES_MAX"),
        ("requests for experts of one key", "", "JOBS_OF_PEER"),
        ("of all keys", "", "SN_EXPERT_JOBS_MAX"),
        ("holders of experts that are known", "", "SN_EXPERT_HOLDERS_MAX"),
        ("a round of experts takes", "us", "SN_EXPERT_ROUND_US"),
    ],
    "connections that a node makes": [
        ("for one client", "", "CLIENT_TARGETS_MAX"),
        ("in all", "", "SN_OUTGOING_MAX"),
        ("unused, until it is closed", "us", "IDLE_US outgoing.c"),
        ("peers that a program dials", "", "DIALLED_MAX"),
        ("one is reached within, and as long by its relay", "us", "CONNECT_US"),
        ("one that is absent is dialled again after", "us", "PAUSE_FIRST_US"),
        ("doubled each time, up to", "us", "PAUSE_MAX_US"),
        ("dial-backs to one network address at once", "", "SN_DIAL_BACKS_BURST"),
        ("then one in seconds", "s", "SN_DIAL_BACK_EVERY_S"),
        ("to all addresses in a second", "", "SN_DIAL_BACKS_PER_S"),
        ("nodes asked for an answer before a decision about blocks", "", "SN_COVERAGE_TRIED_MAX"),
    ],
    "relays": [
        ("relayed nodes", "", "SN_RELAYED_NODES_MAX"),
        ("connections of one of them", "", "SN_RELAYED_CONNECTIONS_MAX"),
        ("of these from one network address", "", "SN_RELAYED_OF_CLIENT_MAX"),
        ("connections of a network address that wait", "", "SN_PORTAL_OF_ADDRESS_MAX"),
        ("calls of a network address at once", "", "CALLS_BURST"),
        ("then in a second", "", "CALLS_PER_S"),
        ("a relayed node answers a call within", "us", "CALL_US portal_thread.c"),
        ("nodes of the local network that are taken", "", "SN_LAN_NODES_MAX"),
        ("of one host", "", "SN_LAN_OF_HOST_MAX"),
    ],
    "announcements": [
        ("nodes in a directory", "", "SN_DIRECTORY_MAX"),
        ("an announcement", "B", "SN_ANNOUNCEMENT_SIZE_MAX"),
        ("it counts after it has arrived for", "ms", "SN_ANNOUNCE_LIFE_MS"),
        ("it expires ahead by", "ms", "SN_ANNOUNCE_LIFE_MS_MAX"),
        ("gossip of a node in a second", "B", "SN_GOSSIP_BYTES_PER_S"),
        ("lists for one key at once", "B", "SN_ALLOWANCE_BURST"),
        ("then in a second", "B", "SN_ALLOWANCE_BYTES_PER_S"),
        ("lists for one network address at once", "B", "SN_ALLOWANCE_NETWORK_BURST"),
        ("then in a second", "B", "SN_ALLOWANCE_NETWORK_BYTES_PER_S"),
        ("lists for all at once", "B", "SN_ALLOWANCE_ALL_BURST"),
        ("then in a second", "B", "SN_ALLOWANCE_ALL_BYTES_PER_S"),
        ("announcements of a network address that are verified at once", "", "SN_NEWS_BURST"),
        ("then in a second", "", "SN_NEWS_PER_S"),
        ("of all that dialled the node in a second", "", "SN_NEWS_ALL_PER_S"),
        ("of all that it dialled and was not told to join", "", "SN_NEWS_MET_PER_S"),
        ("records kept of a DHT", "", "SN_DHT_FOUND_MAX"),
        ("nodes of a DHT that a client asks", "", "SN_BOOTSTRAP_FOUND_MAX"),
    ],
    "what a client spends": [
        ("a node that failed is banned, doubled each time", "us", "SN_BAN_US"),
        ("up to", "us", "SN_BAN_US_MAX"),
        ("one that could not be reached is left alone, doubled each time", "us", "SN_ABSENCE_US"),
        ("up to", "us", "SN_ABSENCE_US_MAX"),
        ("sessions that a node may lose meanwhile", "", "SN_LOSSES_MAX"),
        ("good steps after which a failure is forgotten", "", "SN_FAILURE_DECAY_STEPS"),
        ("a node that is so many times slower than announced is remembered", "", "SN_SLOW_FACTOR"),
        ("for", "ms", "SN_SLOW_MS"),
        ("nodes of which a status is asked at a time", "", "SN_LINK_ASKED_AT_ONCE"),
        ("auditors of one check", "", "AUDITORS_MAX"),
        ("ranges of blocks that wait for a check", "", "SN_AUDIT_LOGS_MAX"),
        ("files of evidence of a session", "", "EVIDENCE_FILES_MAX"),
        ("senders of a model's files", "", "SN_SENDERS_MAX"),
        ("a manifest", "B", "SN_MANIFEST_MAX"),
        ("a piece of a file", "B", "SN_PIECE_MAX"),
        ("requests for weights of one key", "", "PLACES_OF_PEER"),
        ("of all keys", "", "SN_SHARING_WAITING_MAX"),
    ],
    "files of a model": [
        ("a chat template", "B", "SN_JINJA_SOURCE_MAX"),
        ("steps of one that is read", "", "PARSE_STEPS"),
        ("memory of it", "B", "PARSE_MEMORY"),
        ("a text to be tokenized", "B", "SN_TEXT_MAX"),
        ("a pattern that splits texts", "B", "SN_PATTERN_MAX"),
        ("its time on a text", "us", "TEXT_US"),
        ("and for each byte", "us", "BYTE_US"),
        ("tokens of a vocabulary", "", "SN_VOCAB_MAX"),
        ("a document of a hub takes", "s", "DOCUMENT_S http.c"),
        ("a hub may stall for", "s", "STALL_S http.c"),
    ],
    "the server": [
        ("connections", "", "CONNECTIONS_MAX server.c"),
        ("of one network address", "", "CONNECTIONS_OF_ADDRESS_MAX"),
        ("a body", "B", "SN_BODY_MAX"),
        ("headers take", "ms", "HEADERS_MS"),
        ("and while more than three quarters of the places are taken", "ms", "CROWDED_HEADERS_MS"),
        ("a body takes", "ms", "BODY_MS"),
        ("and then", "ms", "CROWDED_BODY_MS"),
        ("values of a body", "", "SN_REQUEST_VALUES_MAX"),
        ("its nesting", "", "SN_REQUEST_DEPTH_MAX"),
        ("choices of a request, prompts times `n`", "", "N_CHOICES_MAX"),
        ("memory of large requests and replies", "B", "SN_LOAD_BYTES_MAX"),
        ("parts that are not counted in it", "B", "SN_LOAD_SMALL"),
        ("values of a schema", "", "SCHEMA_SIZE_MAX"),
        ("states of a grammar", "B", "SN_GRAMMAR_BYTES_MAX"),
        ("programs that read a node's metrics", "", "CONNECTIONS_MAX metrics.c"),
    ],
}


def definitions():
    """{name: [(file, expression)]} of every constant that an enum of the product gives a value."""
    out = subprocess.run(["git", "ls-files", "--", "*.c", "*.h"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = {}
    for path in sorted(set(out.splitlines())):
        if path.split("/")[0] not in ("tests", "examples") and os.path.exists(os.path.join(ROOT, path)):
            with open(os.path.join(ROOT, path), encoding="utf8") as f:
                text = re.sub(r"/\*.*?\*/", "", f.read(), flags=re.S)
            for body in re.findall(r"\benum(?: \w+)? \{([^{}]*)\}", text):
                for name, expression in re.findall(r"\b([A-Z]\w+) = ([^,]+)", body):
                    found.setdefault(name, []).append((path, expression.strip()))
    return found


def value(expression, path, found):
    """The number of an expression; names in it are constants of the same file, or of one file alone."""
    for name in set(re.findall(r"\b[A-Z]\w+\b", expression)):
        near = [e for p, e in found.get(name, ()) if p == path] or [e for _, e in found.get(name, ())]
        expression = re.sub(rf"\b{name}\b", f"({value(near[0], path, found)})", expression)
    if not re.fullmatch(r"[\d\sxa-fA-F<>*/()+-]+", expression):
        raise ValueError(f"{path}: scripts/docs_limits.py does not understand '{expression}'")
    return eval(expression.replace("/", "//"))


def shown(number, unit):
    if unit == "B":
        for size, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
            if number >= size and number % size == 0:
                return f"{number // size} {name}"
        return f"{number:,} bytes"
    if unit:
        us = number * {"us": 1, "ms": 1000, "s": 1000000}[unit]
        for size, name in ((3600000000, "h"), (60000000, "min"), (1000000, "s"), (1000, "ms")):
            if us >= size and us % size == 0:
                return f"{us // size} {name}"
        return f"{us} us"
    return f"{number:,}"


def table():
    found, lines = definitions(), ["| what is bounded | value | constant | file |", "| --- | --- | --- | --- |"]
    for subject, limits in LIMITS.items():
        lines.append(f"| **{subject}** | | | |")
        for what, unit, name in limits:
            name, _, at = name.partition(" ")
            places = [(path, e) for path, e in found.get(name, ()) if not at or os.path.basename(path) == at]
            if len(places) != 1:
                raise SystemExit(f"scripts/docs_limits.py: {len(places)} files define {name}: name one, or take it out")
            path, expression = places[0]
            lines.append(f"| {what} | {shown(value(expression, path, found), unit)} | `{name}` | `{path}` |")
    return "\n".join(lines)
