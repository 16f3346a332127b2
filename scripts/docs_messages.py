"""The messages of net/message.h as tables of docs/PROTOCOL.md: title, comment, fields with types and limits."""
import os
import re
import textwrap

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HEADER = os.path.join(ROOT, "net/message.h")
SIZES = {"KEY": "binary, 32 bytes", "SID": "binary, 16 bytes"}
POWERS = {2**exponent - 1: f"below 2^{exponent}" for exponent in (31, 32, 55)} | {2**exponent: f"at most 2^{exponent}" for exponent in (30, 48)}


def value(expression, constants):
    """The number that an expression of the header stands for."""
    for name in re.findall(r"\bSN_\w+", expression):
        expression = re.sub(rf"\b{name}\b", str(constants[name]), expression)
    expression = re.sub(r"\bINT64_C\((\d+)\)", r"\1", expression)
    for name, bits in (("UINT64_MAX", 64), ("UINT32_MAX", 32), ("INT64_MAX", 63), ("INT32_MAX", 31)):
        expression = expression.replace(name, str(2**bits - 1))
    if not re.fullmatch(r"[\d\s<>*()+-]+", expression):
        raise ValueError(f"{HEADER}: this script does not understand '{expression}'")
    return eval(expression)


def constants_of(header):
    known = {"SN_STOP": 4}
    for name, expression in re.findall(r"^    (SN_\w+) = ([^,/]+),", header, re.M):
        known[name] = value(expression, known)
    return known


def range_of(text, header, constants):
    """[least, most] of SN_R_X, or of two numbers."""
    if text.startswith("SN_R_"):
        text = re.search(rf"#define {text} +(.*?)(?:/\*.*)?$", header, re.M).group(1)
    return [value(part, constants) for part in text.split(",")]


def limits(least, most):
    if most == 2**64 - 1:
        return ""
    if least == 0:
        return ", " + ("0 or 1" if most == 1 else POWERS.get(most, f"at most {most:,}"))
    return f", {least:,} or more, {POWERS[most]}" if most in POWERS else f", {least:,} to {most:,}"


def type_of(macro, arguments, header, constants):
    if macro in SIZES:
        return SIZES[macro]
    if macro == "U64":
        return "integer" + limits(*range_of(arguments, header, constants))
    if macro == "STR":
        return f"text, at most {value(arguments, constants)} bytes"
    if macro == "LIST":
        name, most = arguments.split(",")
        return f"array of at most {value(most, constants):,} maps `{name.strip()}`"
    most, bounds = arguments.split(",", 1)
    least, longest = range_of(bounds.strip(), header, constants)
    count = value(most, constants)
    size = f"{least} bytes" if least == longest else f"{least} to {longest:,} bytes"
    return f"array of at most {count:,} {'binary' if count == 1 else 'binaries'}, {size}{'' if count == 1 else ' each'}"


def prose(comment, constants, messages, names):
    """A comment as text of the page: names of messages in lower case, constants as numbers, no names of headers."""
    text = " ".join(re.sub(r"^ ?\* ?", "", line.strip()) for line in comment.splitlines()).strip()
    text = re.sub(r" ?\((?:[a-z_]+/)+[a-z_]+\.h(?:, [^)]*)?\)", "", text)
    text = re.sub(r"\bSN_(RETRY|REBUILD|REFUSED)\b", lambda m: f"*{m.group(1).lower()}*", text)
    text = re.sub(r"\bSN_[A-Z_]+\b", lambda m: f"{constants[m.group(0)]:,}" + " ms" * m.group(0).endswith("_MS"), text)
    text = re.sub(r"\b[A-Z][A-Z_]+\b", lambda m: f"`{m.group(0).lower()}`" if m.group(0) in messages else m.group(0), text)
    text = re.sub(rf"(?<![`\w])({'|'.join(sorted(names, key=len, reverse=True))})(?![`\w])", r"`\1`", text)
    return re.sub(r" \(sn_\w+\)", "", text).replace("|", "\\|")


def wrapped(text):
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def lists_of(header):
    """{NAME: (comment above its list, [(macro, field, arguments, comment)])} of all SN_FIELDS_NAME."""
    found = {}
    for comment, name, body in re.findall(
        r"(?:/\*((?:(?!\*/)[\s\S])*)\*/\n)?#define SN_FIELDS_(\w+)\(U64[^)]*\)\s*\\\n((?:.*\\\n)*.*\n)", header
    ):
        body = re.sub(r"\s*\\\n", "\n", body)
        found[name] = (comment, re.findall(r"\b(U64|KEY|SID|STR|LIST|BLOBS)\((\w+)(?:, ([^)]*))?\)[ \n]*(?:/\*((?:(?!\*/)[\s\S])*)\*/)?", body))
    return found


def table(rows, asked, text, header, constants):
    """asked: the fields of the request, of which a reply repeats some."""
    lines = ["| field | type | meaning |", "| --- | --- | --- |"]
    for macro, field, arguments, comment in rows:
        lines.append(f"| `{field}` | {type_of(macro, arguments, header, constants)} | {text(comment) or 'as in the request' * (field in asked)} |")
    return lines


def sections():
    """{REQUEST: its part of the page, from the title to the tables of its reply and of the maps in both}"""
    with open(HEADER, encoding="utf8") as f:
        header = f.read()
    constants, lists = constants_of(header), lists_of(header)
    kinds = dict(re.findall(r"^ *X\(([A-Z_]+), [a-z_]+, ([01])\)", header, re.M))
    reply = {"PING": "PONG"} | {k: k + "_REPLY" for k in kinds if k + "_REPLY" in kinds}
    names = {field for _, rows in lists.values() for _, field, _, _ in rows if "_" in field} | {"correlation_id"}
    explained, made = set(), {}

    def text(comment):
        return prose(comment, constants, kinds, names)

    def described(name, asked=()):
        """The sentence of a list, and its table; then the tables of maps that no message before has."""
        comment, rows = lists[name]
        said = text(comment)
        if name in kinds:  # its name is the title, as is that of its reply
            said = re.sub(r"^`\w+`[,:] ", "", re.sub(r", answered by `\w+`:", ":", said, count=1))
        lines = [wrapped(said[:1].upper() + said[1:]), ""] if said else []
        lines += table(rows, asked, text, header, constants) + [""]
        for macro, _, arguments, _ in rows:
            of = arguments.split(",")[0] if macro == "LIST" else ""
            if of and of not in explained:
                explained.add(of)
                lines += [f"A map `{of}`:", ""] + described(of.upper())
        return lines

    for kind in kinds:
        if kind in reply.values():
            continue
        name, answer = kind.lower(), reply.get(kind)
        lines = [f"### {name}" + (f", answered by {answer.lower()}" if answer else ""), *described(kind)]
        if answer:
            lines += [f"`{answer.lower()}`" + (", with a tensor" if kinds[answer] == "1" else "") + ":", "", *described(answer, {field for _, field, _, _ in lists[kind][1]})]
        made[kind] = "\n".join(lines).rstrip() + "\n"
    return made


def with_tensor():
    """The messages that carry a tensor, for the sentence of the page that names them."""
    with open(HEADER, encoding="utf8") as f:
        kinds = re.findall(r"^ *X\([A-Z_]+, ([a-z_]+), 1\)", f.read(), re.M)
    return wrapped(", ".join(f"`{k}`" for k in kinds[:-1]) + f" and `{kinds[-1]}`")
