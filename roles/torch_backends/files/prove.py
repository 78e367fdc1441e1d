"""Have PyTorch offer the backend, with the builds asked for (arguments), and leave a proof (last argument)."""

import importlib.metadata
import sys
from pathlib import Path

import torch.distributed
import torchfleet_backends

*builds, proof = sys.argv[1:]
lacks = [name for name in builds if not Path(torchfleet_backends.__file__).with_name(f"_{name}.so").exists()]
if lacks:
    sys.exit(f"there is no build for {', '.join(lacks)}")
if not torch.distributed.is_backend_available("mpi"):
    sys.exit("PyTorch does not see it")
Path(proof).write_text(importlib.metadata.version("torchfleet-backends") + "\n", encoding="utf-8")
