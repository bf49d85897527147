"""Trains in child processes that are killed at random moments, then lets one finish. Run by test_resume.py.

Children are forked from a process that has imported everything, so that a kill falls into the work, not into imports.
Usage: killing.py OUT KILLS LONGEST JSON-of-train-arguments
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time

import torch

torch.set_num_threads(1)

from rcalign import api  # noqa: E402


def main() -> None:
    out, kills, longest = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    arguments = json.loads(sys.argv[4])
    random.seed(int.from_bytes(os.urandom(8), "little"))
    done = 0
    for _ in range(10 * kills + 1):
        child = os.fork()
        if child == 0:
            api.train(**arguments, out=out, resume=True)
            os._exit(0)
        if done < kills:
            time.sleep(random.uniform(0, longest))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            done += 1
        elif os.WEXITSTATUS(status) != 0:
            sys.exit(f"a resumed run failed after {done} kills")
        else:
            break
    print(json.dumps({"kills": done}))


if __name__ == "__main__":
    main()
