"""Documents that people write: read strictly, as YAML 1.2, so that every error names its place and what would be right.

``reader`` (text to a tree that knows its places), ``errors`` (problems and their words), ``model`` (the base of frozen,
strict models), ``translate`` (what pydantic found wrong, in words of the document), ``schema`` (for editors).
"""
