"""`python -m instar`: the command line, where its script is not on the path."""

from instar.cli.main import main

if __name__ == "__main__":
    main()
