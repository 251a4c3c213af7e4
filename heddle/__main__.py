"""`python -m heddle`: the same as the command `heddle`. It never does anything of its own."""

from heddle.cli import main

if __name__ == "__main__":
    main()
