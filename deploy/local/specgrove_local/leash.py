"""Turns into COMMAND, which the kernel kills when its parent dies: `python leash.py PARENT_PID COMMAND...`.

Started by path, isolated (`python -I`), before COMMAND is executed in the same process. Doing this in a program of its
own and not in a `preexec_fn` keeps Python code from running between fork and exec in a parent that has threads.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h; survives exec


def main(parent_pid: int, command: list[str]) -> None:
    if sys.platform == "linux" and ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        sys.exit("leash: prctl(PR_SET_PDEATHSIG) was refused")
    if os.getppid() != parent_pid:
        sys.exit("leash: the parent died before its child began")
    os.execv(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
