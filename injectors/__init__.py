"""What makes faults: one family a module, all by the contract in ``contract``.

Runs on nodes, on Python 3.9 and newer, with the standard library and pyroute2 alone. A site adds its own injectors
through the entry point group ``chaos.injectors``.
"""
