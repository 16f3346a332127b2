#!python
# Starts the program of its own name, which the package swarmnode holds.
import importlib.util
import os
import sys

here = os.path.dirname(os.path.realpath(__file__))
spec = importlib.util.find_spec("swarmnode")  # without importing it
folders = [*(spec.submodule_search_locations if spec else []), os.path.join(os.path.dirname(here), "swarmnode")]  # pip --target
programs = [os.path.join(folder, "bin", os.path.basename(sys.argv[0])) for folder in folders]
program = next(filter(os.path.exists, programs), programs[0])
try:
    os.execv(program, sys.argv)
except OSError as e:
    sys.exit(f"{sys.argv[0]}: {program} cannot be started: {e.strerror}; install the wheel of swarmnode again")
