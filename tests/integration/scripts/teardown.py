"""Does its work, then dies while the interpreter is torn down, as stock gloo does now and then."""

import os


class Abort:
    def __del__(self) -> None:
        os.abort()


keep = Abort()
print("work done", flush=True)
