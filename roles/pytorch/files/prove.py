"""Import PyTorch, compare its version (first argument) and leave a proof (second argument).

The first proof compiles what is imported. It runs where the environment is made: copies for other machines have the
bytecode.
"""

import contextlib
import importlib
import importlib.util
import sys
from pathlib import Path

import torch

wanted, proof = sys.argv[1:]
if wanted not in (torch.__version__, torch.__version__.split("+")[0]):
    sys.exit(f"PyTorch {torch.__version__} was imported, {wanted} was asked for")
# DistributedDataParallel and optimizers import it at their first use (torch/_compile.py), which each rank of the first
# job would compile. A failure is none of PyTorch: not every version of Python has it.
with contextlib.suppress(Exception):
    found = importlib.util.find_spec("torch._dynamo")
    if found and found.cached and not Path(found.cached).exists():
        importlib.import_module("torch._dynamo")
Path(proof).write_text(torch.__version__ + "\n", encoding="utf-8")
print(torch.__version__)
