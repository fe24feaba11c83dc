"""How an agent's byte pipe is opened, and the controller's end of it.

``pipe`` is the client; ``local`` starts an agent on this machine, ``lab`` one on a node of the lab, ``ssh`` one on a
node that is reached by SSH (``ssh_route`` finds the way, ``known_hosts`` checks who is there, ``ssh_connection`` keeps
the connection). ``bundle`` is the agent's code on its way to a node; ``boot``, ``remote_run`` and ``remote_tail`` run
there.
"""
