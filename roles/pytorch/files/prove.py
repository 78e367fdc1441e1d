"""Import PyTorch, compare its version (first argument) and leave a proof (second argument)."""

import sys
from pathlib import Path

import torch

wanted, proof = sys.argv[1:]
if wanted not in (torch.__version__, torch.__version__.split("+")[0]):
    sys.exit(f"PyTorch {torch.__version__} was imported, {wanted} was asked for")
Path(proof).write_text(torch.__version__ + "\n", encoding="utf-8")
print(torch.__version__)
