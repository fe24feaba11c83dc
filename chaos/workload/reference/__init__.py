"""The built-in training job: a small LLaMA-style byte model, data parallel, with recoveries to compare.

``job`` is what is started. It becomes the job's ``zygote``, which forks all others: the ``launcher``, which decides who
is a member, and the ranks (``rank``), each in its place (``placement``), which train (``training``) and, after each
change of members, agree on what to go on from (``recovery``). Launcher and ranks meet over a named socket
(``rendezvous``) and talk in ``messages``; ranks form process groups over the launcher's ``store``, and watch the paths
between them by ``beacons``. ``elastic`` is the same training under torchrun.
"""
