"""What is measured: one question a module; each prints figures and how they were got. ``python -m bench.all``: all."""
