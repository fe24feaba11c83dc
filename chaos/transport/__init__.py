"""How an agent's byte pipe is opened, and the controller's end of it.

``pipe`` is the client; ``local`` starts an agent on this machine, ``lab`` one on a node of the lab.
"""
