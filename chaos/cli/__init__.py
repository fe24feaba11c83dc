"""The commands: ``main`` (entry point), ``run``, ``document`` (validate, schema, experiments), ``runs`` (list, report,
explain, prune), ``lab``; ``terminal`` shows a run while it goes on, ``shipped`` finds the experiments that come along.
"""
