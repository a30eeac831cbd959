"""Define two tables: the kinds of claim, and the probes (ways to execute a run). Every list of kinds elsewhere is
derived from these tables. An import of this package imports nothing else of the harness except `harness.errors`."""

from harness.kinds.built_in import BUILT_IN as BUILT_IN
from harness.kinds.installed import kind_of as kind_of
from harness.kinds.installed import kinds as kinds
from harness.kinds.installed import probe_named as probe_named
from harness.kinds.installed import probe_of as probe_of
from harness.kinds.kind import Kind as Kind
from harness.kinds.probes import Probe as Probe
from harness.kinds.row import imported as imported
from harness.kinds.row import resolve as resolve
