"""`python -m harness`: works from a source tree, without installation."""

from harness.commands.application import main

main()
