"""A command that a test starts with this folder on its path forks its workers (`warm_start`)."""

import os

if "WARM_SERVER" in os.environ:
    import warm_start

    from harness.processes import kept

    vars(kept)["subprocess"] = warm_start.Subprocess()
