"""`python -m harness`: works from a source tree, without installation."""

from harness.cli import main

main()
