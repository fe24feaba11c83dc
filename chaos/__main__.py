"""``python -m chaos``: the same as the command ``chaos``, whichever package's ``chaos`` comes first on the path."""

from chaos.cli.main import main

if __name__ == "__main__":
    main()
