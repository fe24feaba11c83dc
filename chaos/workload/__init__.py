"""The training job under test: how it is launched and how its steps are observed.

``events`` writes and reads step events; ``launch`` starts a job in the lab; ``reference`` is the built-in trainer.
"""
