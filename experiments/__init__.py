"""The experiments that ship: YAML documents, each explained in its own comments."""
