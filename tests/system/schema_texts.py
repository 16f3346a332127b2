"""Schemas drawn at random, and what a grammar makes of them, judged by jsonschema.

schema_texts.py PROGRAM NUMBER SEED: texts that PROGRAM (tests/scripted/schema_texts.c) draws from the grammar of a schema
must be JSON that the schema allows. And the other way round: values that jsonschema allows, made from those texts and from
the texts of the schema's parts, must be allowed by the grammar, written without spaces and with them. Prints how many
schemas were kept and refused, and ends with 1 when one of the two does not hold."""
import itertools
import json
import random
import subprocess
import sys

import jsonschema

NAMES = "abcde"
BOUNDS = [-3, -1, 0, 1, 2, 7, 10, 12.5, 0.1, -0.25, 1e-35, 99, 100.5, 1234567890123456789, 0.1 + 0.2, 1 / 3, 1e20, 2**53 - 1]
CONSTANTS = ["a", "b", "", "x y", 'q"', 1, 2, 0.1, 1.0, -2.5, True, False, None, [], [1], {"a": 1}, {"b": "a", "a": [2]}]


class Drawer:
    def __init__(self, rng):
        self.rng = rng

    def chance(self, p):
        return self.rng.random() < p

    def limits(self, s, least, most, top):
        if self.chance(0.3):
            s[least] = self.rng.randrange(top)
        if self.chance(0.3):
            s[most] = self.rng.randrange(s.get(least, 0), top + 2) if self.chance(0.9) else self.rng.randrange(top)

    def numbers(self, s):
        for keyword in ["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"]:
            if self.chance(0.25):
                s[keyword] = self.rng.choice(BOUNDS)

    def strings(self, s):
        kind = self.rng.randrange(6)
        if kind == 0:
            s["pattern"] = self.rng.choice(["^[a-c]+$", "^x[0-9]{2}", "^(on|off)$", "^a"])
        elif kind == 1:
            s["format"] = self.rng.choice(["date", "uuid", "ipv4"])
        else:
            self.limits(s, "minLength", "maxLength", 4)

    def arrays(self, s, depth):
        if self.chance(0.5):
            s["items"] = self.schema(depth + 1)
        if self.chance(0.3):
            s["prefixItems"] = [self.schema(depth + 1) for _ in range(self.rng.randrange(1, 3))]
        self.limits(s, "minItems", "maxItems", 3)

    def objects(self, s, depth):
        if self.chance(0.8):
            s["properties"] = {k: self.schema(depth + 1) for k in sorted(self.rng.sample(NAMES, self.rng.randrange(1, 4)))}
        if self.chance(0.5):
            s["required"] = self.rng.sample(NAMES, self.rng.randrange(0, 3))
        if self.chance(0.5):
            s["additionalProperties"] = False if self.chance(0.6) else self.schema(depth + 1)

    def typed(self, depth):
        s, kind = {}, self.rng.choice(["object", "object", "array", "string", "number", "integer", "boolean", "null"])
        s["type"] = kind if self.chance(0.9) else sorted({kind, self.rng.choice(["string", "null", "integer", "object"])})
        if kind in ("number", "integer"):
            self.numbers(s)
        elif kind in ("string", "array", "object"):
            getattr(self, kind + "s")(*([s] if kind == "string" else [s, depth]))
        if self.chance(0.1):
            del s["type"]
        return s

    def schema(self, depth=0):
        kind = self.rng.random()
        if depth > 3:
            return self.rng.choice([True, {"type": "integer"}, {"const": 1}, {"type": "string", "maxLength": 2}])
        if kind < 0.05:
            return self.rng.choice([True, False, {}])
        if kind < 0.15:
            return {"enum": self.rng.sample(CONSTANTS, self.rng.randrange(1, 5))} if self.chance(0.5) else {"const": self.rng.choice(CONSTANTS)}
        if kind < 0.22 and self.defined:
            return {"$ref": "#/$defs/" + self.rng.choice(self.defined)}
        s = self.typed(depth) if kind < 0.85 else {}
        if kind > 0.68:
            for _ in range(self.rng.randrange(1, 3)):
                s[self.rng.choice(["allOf", "anyOf", "oneOf"])] = [self.schema(depth + 1) for _ in range(self.rng.randrange(1, 4))]
            if self.chance(0.15):
                s["enum"] = self.rng.sample(CONSTANTS, self.rng.randrange(1, 5))
        return s

    def root(self):
        self.defined = self.rng.choice([[], [], ["n"], ["n", "m"]])
        s = self.schema()
        if self.defined and isinstance(s, dict):
            s = dict(s)
            s["$defs"] = {name: self.schema(1) for name in self.defined}
        return s


def parts_of(s):
    """What a schema is made of, besides members and elements."""
    if isinstance(s, dict):
        for keyword in ("allOf", "anyOf", "oneOf"):
            for part in s.get(keyword, []):
                yield part
                yield from parts_of(part)


def changed(rng, value):
    """Values that are a little different."""
    if isinstance(value, dict):
        for key in list(value):
            yield {k: v for k, v in value.items() if k != key}
            for other in changed(rng, value[key]):
                yield {**value, key: other}
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield value[:i] + value[i + 1 :]
            for other in changed(rng, inner):
                yield value[:i] + [other] + value[i + 1 :]
        yield value + value[-1:]
    elif isinstance(value, bool) or value is None:
        yield from (True, False, None)
    elif isinstance(value, (int, float)):
        yield from (0, 1, value + 1, rng.choice(BOUNDS))
    else:
        yield from ("a", value + "a", value[:-1], rng.choice(["b", "on", "x y", "é", 'q"']))


def is_plain(value):
    """Numbers whose text is short and has no exponent, and no keys but the usual ones: docs/SERVER.md says which are generated."""
    if isinstance(value, dict):
        return all(k in NAMES and is_plain(v) for k, v in value.items())
    if isinstance(value, list):
        return all(map(is_plain, value))
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return True
    text = json.dumps(value)
    return "e" not in text and "I" not in text and "N" not in text and len(text.strip("-").replace(".", "").lstrip("0")) <= 15


def plain_numbers(value):
    """As the grammar writes them: whole numbers without a point."""
    if isinstance(value, dict):
        return {k: plain_numbers(v) for k, v in value.items()}
    if isinstance(value, list):
        return [plain_numbers(v) for v in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def no_double(pairs):
    keys = [k for k, _ in pairs]
    if len(keys) != len(set(keys)):
        raise ValueError("a key twice")
    return dict(pairs)


def opened(schema):
    """With other members wherever the schema does not forbid them: unless it asks for them none is generated."""
    if isinstance(schema, list):
        return [opened(s) for s in schema]
    if not isinstance(schema, dict):
        return schema
    s = {}
    for key, value in schema.items():
        if key in ("properties", "$defs"):
            s[key] = {name: opened(inner) for name, inner in value.items()}
        else:
            s[key] = value if key in ("enum", "const", "required", "type") else opened(value)
    if "properties" in s or "required" in s:
        s.setdefault("additionalProperties", True)
    return s


def orders(value):
    """The value with its members in all orders."""
    if isinstance(value, list):
        yield from (list(v) for v in itertools.product(*map(orders, value)))
    elif isinstance(value, dict):
        for keys in itertools.permutations(value):
            yield from (dict(zip(keys, inner)) for inner in itertools.product(*(orders(value[k]) for k in keys)))
    else:
        yield value


def is_open_or_sorted(grammars, schema, text):
    """Whether a text is but refused for a member that the schema does not name, or for the order of members."""
    texts = [json.dumps(v, ensure_ascii=False) for v in itertools.islice(orders(json.loads(text)), 500)]
    return any(grammars.ask(opened(schema), 0, 0, texts)["allowed"])


def is_endless(schema):
    """Whether a reference leads to itself without a member between, for which jsonschema has no verdict."""
    try:
        for value in CONSTANTS:
            jsonschema.Draft202012Validator(schema).is_valid(value)
    except RecursionError:
        return True
    return False


class Grammars:
    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, schema, draw, seed, texts=()):
        print(json.dumps({"schema": schema, "draw": draw, "seed": seed, "texts": list(texts)}), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())


def main(program, number, seed):
    grammars, rng = Grammars(program), random.Random(seed)
    counts = dict(kept=0, refused=0, empty=0, texts=0, values=0, bad=0)
    reasons = {}
    while counts["kept"] < number:
        schema = Drawer(rng).root()
        if is_endless(schema):
            continue
        told = grammars.ask(schema, 8, rng.randrange(2**31))
        if "refused" in told:
            empty = "no JSON" in told["refused"]
            counts["empty" if empty else "refused"] += 1
            for value in CONSTANTS + [{}, 3, "on"] if empty else []:
                if is_plain(value) and jsonschema.Draft202012Validator(schema).is_valid(value) and "format" not in json.dumps(schema):
                    counts["bad"] += 1
                    print(f"not empty: {json.dumps(schema)}\n  {value!r}")
            reasons[told["refused"]] = reasons.get(told["refused"], 0) + 1
            continue
        counts["kept"] += 1
        validator, values = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker()), []
        for text in told["drawn"]:
            counts["texts"] += 1
            try:
                value = json.loads(text, object_pairs_hook=no_double)
                if not validator.is_valid(value):
                    raise ValueError("the schema does not allow it")
                values.append(value)
            except (ValueError, TypeError) as e:
                counts["bad"] += 1
                print(f"drawn: {json.dumps(schema)}\n  {text!r}: {e}")
        for part in parts_of(schema):
            part = {"allOf": [part], "$defs": schema["$defs"]} if "$defs" in schema else part
            values += [json.loads(t) for t in grammars.ask(part, 2, rng.randrange(2**31)).get("drawn", []) if t]
        values += [other for value in values for other in list(changed(rng, value))[:40]]
        values = [plain_numbers(v) for v in values if is_plain(v) and validator.is_valid(v)]
        texts = [t for v in values for t in {json.dumps(v, separators=(",", ":"), ensure_ascii=False), json.dumps(v, ensure_ascii=False), json.dumps(v, indent=2, ensure_ascii=False)}]
        counts["values"] += len(values)
        for text, allowed in zip(texts, grammars.ask(schema, 0, 0, texts)["allowed"]):
            if not allowed and not is_open_or_sorted(grammars, schema, text):
                counts["bad"] += 1
                print(f"not allowed: {json.dumps(schema)}\n  {text!r}")
    print(json.dumps(counts))
    for reason, n in sorted(reasons.items(), key=lambda x: -x[1])[:12]:
        print(f"{n:6} {reason}")
    return counts["bad"] > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
