"""The launcher's side: who is a member of the job, what is wrong, and when a new generation is due.

``supervisor`` decides. What it goes by: ``workers`` (processes and their connections), ``membership`` (seats and
spares), ``heartbeat`` (who hangs), ``progress`` (whose main thread is stuck), ``paths`` and ``routes`` (which links are
sick, and the way round), ``adoption`` (what a former launcher has left). All but ``workers`` and ``supervisor`` are
pure.
"""
