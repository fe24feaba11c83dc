"""A rank's side: ``process`` is its life, ``control`` hears the launcher, ``group`` forms process groups and waits in
their collectives, ``abort`` breaks them.
"""
