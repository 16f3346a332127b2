"""A conversation: reads lines, prints the model's answers as they come.

python chat.py MODEL [HOST:PORT]"""

import sys

import swarmnode


def main(path, *join):
    model = swarmnode.Model(swarmnode.Swarm(join=join) if join else None, path)
    messages = []
    with model.session() as session:  # keeps what it has computed: a turn computes the new text only
        for line in sys.stdin:
            messages.append({"role": "user", "content": line.rstrip("\n")})
            answer = ""
            for text in session.generate(messages, stream=True, max_tokens=200, temperature=0):
                print(text, end="", flush=True)
                answer += text
            print()
            messages.append({"role": "assistant", "content": answer})


main(*sys.argv[1:])
