"""What is trained, whoever the members are: ``loop`` over a ``replica`` (``model``, ``arena``, ``optimizer`` and
``data``), paced by ``pace``, with the ``checkpoint`` files of the recoveries that need them.
"""
