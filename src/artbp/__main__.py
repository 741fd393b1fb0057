"""``python -m artbp``: the `artbp` command, of the interpreter that runs it."""

from artbp.cli import main

raise SystemExit(main())
