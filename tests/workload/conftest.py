"""One thread for torch, here and in what tests start: with more, small operations on busy cores crawl."""

import os

os.environ.update({"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"})
