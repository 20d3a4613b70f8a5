"""`python -m kvscope.cli` is the command `kvscope`."""

from kvscope.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
