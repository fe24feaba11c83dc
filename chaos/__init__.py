"""Chaos engineering and fault injection for AI training clusters.

The packages below follow one direction of imports (``make lint`` enforces it): the commands in ``cli`` use the
``engine``, which runs an experiment with the help of ``transport``, ``workload``, ``scoring`` and ``lab``.
Importing ``chaos`` itself imports nothing else, so that an agent on a node starts fast.
"""

__version__ = "0.1.0"
