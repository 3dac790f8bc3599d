"""Entry point of `python -m framedex`, for environments in which the `framedex` script is not on the PATH."""

from framedex.cli import main

if __name__ == "__main__":
    main(prog_name="framedex")
