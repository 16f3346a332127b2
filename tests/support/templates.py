"""Compares chat templates of published models with transformers: templates.py PROGRAM FOLDER.

PROGRAM is build/chat_format, FOLDER has templates (models/templates of llama.cpp's sources). Conversations with system messages, tools,
calls, results and thoughts must be rendered as transformers renders them, unless the template refuses one or leaves a part of it out,
which is written elsewhere then. Calls that a template writes must be read again from what it wrote. Prints what differs and counts;
exits with 1 if anything does.
"""
import copy, glob, json, os, subprocess, sys, warnings

warnings.filterwarnings("ignore")
from transformers.utils.chat_template_utils import _compile_jinja_template

program = subprocess.Popen([sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ours(**request):
    program.stdin.write(json.dumps({"bos": "<s>", "eos": "</s>", **request}) + "\n")
    program.stdin.flush()
    return json.loads(program.stdout.readline())


def parameter(kind, **more):
    return {"type": kind, "description": "What it is.", **more}


def tool(name, required, **properties):
    return {"type": "function", "function": {"name": name, "description": "Does it.",
                                             "parameters": {"type": "object", "properties": properties, "required": [required]}}}


TOOLS = [tool("get_weather", "city", city=parameter("string"), days=parameter("integer"), units=parameter("string", enum=["C", "F"])),
         tool("add", "list", list=parameter("array", items={"type": "number"}), deep=parameter("object", properties={"x": {"type": "boolean"}}))]
ARGUMENTS = [{"city": 'Zürich "West"', "days": 3}, {"list": [1, 2.5], "deep": {"x": True}}]
CALLS = [{"id": f"call0000{i}", "type": "function", "function": {"name": TOOLS[i]["function"]["name"], "arguments": ARGUMENTS[i]}} for i in range(2)]
SYSTEM, USER, THANKS = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "How is it?"}, {"role": "user", "content": "And now?"}


def said(content, calls=(), thought=None):
    message = {"role": "assistant", "content": content, **({"tool_calls": list(calls)} if calls else {})}
    return {**message, "reasoning_content": thought, "thinking": thought} if thought else message  # both names, as the library gives them


def result(i, text):
    return {"role": "tool", "tool_call_id": f"call0000{i}", "name": TOOLS[i]["function"]["name"], "content": text}


# Conversations, their tools, and the words that a template shows if it takes them as they are.
CONVERSATIONS = [
    ([USER], None, []),
    ([SYSTEM, USER], None, ["Be brief."]),
    ([USER, said("Fine."), THANKS], None, ["Fine."]),
    ([USER, said("Fine.", thought="Let me see."), THANKS], None, ["Fine."]),
    ([SYSTEM, USER], TOOLS, ["Be brief.", "get_weather"]),
    ([USER, said("", CALLS[:1]), result(0, "sunny")], TOOLS, ["rich", "sunny"]),
    ([USER, said("", CALLS[:1], "Let me see."), result(0, "sunny")], TOOLS, ["rich", "sunny"]),
    ([USER, said("I look.", CALLS), result(0, "sunny"), result(1, "3.5"), said("Sunny."), THANKS], TOOLS, ["rich", "2.5", "sunny", "3.5"]),
]
VARIABLES = [{}, {"enable_thinking": True}, {"enable_thinking": False}, {"thinking": True}, {"reasoning_effort": "high"}]
# Thoughts of this one end at a mark that its calls do not come behind.
NOT_READ = {"Apriel-1.6-15b-Thinker-fixed"}
ENDS = ["<|im_end|>", "</s>", "<|end|>", "<|user|>", "<|call|>", "<turn|>", "<|tool_response>", "<|END_OF_TURN_TOKEN|>"]


def render(template, messages, tools, prompt, **variables):
    """What transformers makes of it; None: the template refuses."""
    try:
        return template.render(messages=copy.deepcopy(messages), tools=copy.deepcopy(tools), documents=None, add_generation_prompt=prompt,
                               bos_token="<s>", eos_token="</s>", **variables)
    except Exception:
        return None


def differences(text, template):
    """(conversation, variables, what is wanted, what came) where they differ; and how many were compared."""
    found, n = [], 0
    for messages, tools, words in CONVERSATIONS:
        shown = render(template, messages, tools, True)
        if shown is None or any(word not in shown for word in words + (["Does it."] if tools else [])):
            continue
        for variables in VARIABLES:
            for prompt in (True, False):
                want = render(template, messages, tools, prompt, **variables)
                got = ours(template=text, messages=messages, tools=tools, variables=variables, add_generation_prompt=prompt)
                n += 1
                if want is not None and got.get("text") != want:
                    found.append((len(messages), variables, want, got))
    return found, n


def answer_of(prompt, whole):
    """The prompt, and the answer, which begins at a tag that both may have begun."""
    n = len(os.path.commonprefix([prompt, whole]))
    for back in range(1, min(25, n + 1)):
        if whole[n - back] in ">] \n" and n == len(prompt):
            break
        if whole[n - back] in "<[":
            n -= back
            break
    answer = whole[n:]
    for end in ENDS:
        at = answer.rfind(end)
        if at >= 0 and not answer[at + len(end):].strip():
            answer = answer[:at]
    return whole[:n], answer


def misread(text, template):
    """(answer, what was read of it) where that are not the calls; and how many were read."""
    found, n = [], 0
    for count, word in ((1, "rich"), (2, "2.5")):
        prompt, whole = render(template, [USER], TOOLS, True), render(template, [USER, said("", CALLS[:count])], TOOLS, False)
        if prompt is None or whole is None or word not in whole:
            continue
        begin, answer = answer_of(prompt, whole)
        read = ours(template=text, tools=TOOLS, prompt=begin, answer=answer)
        calls = [c["function"] for c in read.get("read", {}).get("tool_calls", [])]
        n += 1
        try:
            same = [(c["name"], json.loads(c["arguments"])) for c in calls] == [(c["function"]["name"], c["function"]["arguments"]) for c in CALLS[:count]]
        except ValueError:
            same = False
        if not same:
            found.append((answer, read))
    return found, n


bad = rendered = answers = 0
for path in sorted(glob.glob(sys.argv[2] + "/*.jinja")):
    name, text = os.path.basename(path)[:-6], open(path, encoding="utf-8", newline="").read()
    template = _compile_jinja_template(text)
    found, n = differences(text, template)
    read, m = ([], 0) if name in NOT_READ else misread(text, template)
    bad, rendered, answers = bad + len(found) + len(read), rendered + n, answers + m
    for messages, variables, want, got in found[:1]:
        print(f"{name}: {messages} messages, {variables}: {got} instead of {want!r}")
    for answer, got in read:
        print(f"{name}: {answer!r} is read as {got}")
print(f"{rendered} conversations, {answers} answers with calls, {bad} differ")
sys.exit(bool(bad) or not answers)
