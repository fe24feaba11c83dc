"""The built-in training job: a small LLaMA-style byte model, data parallel, with recoveries to compare.

``launcher`` starts one job: ``supervisor`` watches its processes (``workers``), holds the membership and publishes
generations of the process group; ``zygote`` forks the ranks, each into its place (``placement``). In a rank
(``rank``), ``control`` listens to the launcher, ``abort`` and ``group`` leave the old process group and build the new
one, ``recovery`` says which state all go on from, and ``loop`` trains. ``replica`` is what is trained: ``model``,
``arena``, ``optimizer``, ``data``.
``elastic`` is the same training under torchrun.
"""
