"""What runs on a node: a short-lived process that holds faults, started by the controller over a byte pipe.

``protocol`` is the language of that pipe; ``main`` the loop that speaks it; ``holder`` one fault's life from arming to
the proof that nothing is left; ``records`` the undo records on stable storage; ``clock`` waits for exact instants.
Runs on Python 3.9 and newer with the standard library, pyroute2 and ``injectors`` alone.
"""
