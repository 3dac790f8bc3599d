"""Entry point of `python -m framedex`, which runs the command if its script is not on the path."""

from framedex.cli import main

if __name__ == "__main__":
    main(prog_name="framedex")
