"""Starts `pipeplan` in a container whose root file system is read-only.

Compiled kernels come with the image, but their cache wants to be writable: a copy in NUMBA_CACHE_DIR is used.
"""

import os
import shutil
import sys

source, target = os.environ.get("PIPEPLAN_KERNELS", ""), os.environ.get("NUMBA_CACHE_DIR", "")
if source and target and os.path.isdir(source) and not os.path.isdir(target):
    shutil.copytree(source, target)
os.execvp("pipeplan", ["pipeplan", *sys.argv[1:]])
