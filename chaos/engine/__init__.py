"""The life of a run: plan, lab, workload, steady state, faults, recovery, proof, score.

``catalogue`` knows the injectors and probes there are; ``plan`` draws what will be done; ``run`` does it, with ``lab``
agents (``agents``), the faults' conductors (``faults``), the live view of the workload (``live``), guards (``guards``)
and the stop switch (``stop``). ``journal`` writes down everything that happens; ``folder`` is where a run is kept;
``outcome`` scores it from journal and steps alone.
"""
