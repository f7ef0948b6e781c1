"""Before anything imports Triton: its kernels are interpreted, so that they run without a GPU."""

import os

os.environ["TRITON_INTERPRET"] = "1"
