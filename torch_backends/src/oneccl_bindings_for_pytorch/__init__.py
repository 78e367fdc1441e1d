"""The name under which scripts import Intel's bindings of oneCCL, which ended with PyTorch 2.8.

Importing it makes `init_process_group("ccl")` work, by torchfleet_backends: on CPU tensors. `cwd` is where
`env/setvars.sh` lies, which such scripts are started after.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch.distributed as dist
from torchfleet_backends._autoload import autoload
from torchfleet_backends._oneccl import find

cwd = str(Path(__file__).parent)
# Of the launchers that there are: the first that is set is this process's rank.
RANKS = ("RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")

if find() is None:
    told = 'ansible-playbook setup.yml -e \'{"backends": ["ccl"]}\' installs it'
    raise ImportError(f"oneccl_bindings_for_pytorch: there is no oneCCL: {told}")
if not dist.is_backend_available("ccl"):
    autoload()
if next((os.environ[name] for name in RANKS if name in os.environ), "0") == "0":
    sys.stderr.write("oneccl_bindings_for_pytorch: backend ccl is that of torchfleet-backends, on CPU tensors\n")
