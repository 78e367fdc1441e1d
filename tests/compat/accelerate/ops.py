"""accelerate's own test of its collective operations.

Unchanged, it asks PartialState() before anything else, which takes CPUs for no cluster under every launcher (accelerate
1.15), so each rank would pass alone. An Accelerator beforehand is what a training has.
"""

from accelerate import Accelerator
from accelerate.test_utils.scripts import test_ops

state = Accelerator().state
print(f"rank {state.process_index} of {state.num_processes}, local rank {state.local_process_index}", flush=True)
test_ops.main()
