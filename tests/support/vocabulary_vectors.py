"""Compares token ids with llama.cpp's vectors: vocabulary_vectors.py SWARM FOLDER [NAME...]

FOLDER is `models` of llama.cpp's sources: ggml-vocab-NAME.gguf with the texts in NAME.gguf.inp and the ids in NAME.gguf.out. Prints how
many of each vocabulary's vectors are the same, and exits with 1 if one is not. Vocabularies of kinds that swarm refuses are named.
"""
import glob, json, os, re, subprocess, sys

swarm, folder, *names = sys.argv[1:]
wrong = 0
for path in sorted(glob.glob(folder + "/ggml-vocab-*.gguf")):
    name = re.fullmatch(r"ggml-vocab-(.*)\.gguf", os.path.basename(path))[1]
    if not os.path.exists(path + ".inp") or (names and name not in names):
        continue
    texts = open(path + ".inp", encoding="utf-8", newline="").read().split("\n__ggml_vocab_test__\n")
    wanted = [[int(n) for n in line.split()] for line in open(path + ".out", encoding="utf-8").read().split("\n")]
    same = refused = 0
    for text, ids in zip(texts, wanted):
        run = subprocess.run([swarm, "tokenize", "--model", path, "--file", "-", "--no-bos", "--no-special", "--json"], input=text.encode(), capture_output=True)
        if run.returncode:
            refused, why = refused + 1, run.stderr.decode().strip().splitlines()[-1]
            break
        got = json.loads(run.stdout)["ids"]
        same += got == ids
        if got != ids:
            print(f"{name}: {text!r}: {got} instead of {ids}")
    if refused:
        print(f"{name}: refused: {why}")
        wrong += bool(names)
        continue
    print(f"{name}: {same} of {len(texts)}")
    wrong += same != len(texts)
sys.exit(wrong > 0)
