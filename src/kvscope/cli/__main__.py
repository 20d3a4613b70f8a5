"""`python -m kvscope.cli` is the command `kvscope`."""

from kvscope.cli.main import main

raise SystemExit(main())
