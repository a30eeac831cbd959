"""A pytest plugin (`-p played_runs`): runs are played in this process, no worker is started."""

import scripted_system

from harness.runners import supervisor

supervisor.execute = scripted_system.play
