"""The emulated cluster: nodes, GPUs and their links as Linux namespaces, up in a fraction of a second.

``topology`` says what is wired to what and under which address; ``keeper`` is the process that holds it all (when it
dies, by whatever signal, the kernel takes everything in the lab with it); ``node`` is the PID 1 of a node; ``links``
wires the network, over ``rtnl``; ``parallel`` does so on all cores; ``client`` talks to a keeper; ``cluster`` starts
and finds labs; ``draw`` shows one in a terminal.

Nothing is imported here: a keeper starts in a few hundredths of a second and loads only what it needs.
"""
