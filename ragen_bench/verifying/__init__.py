"""Verification by replay: every number of a run follows from its episodes, or a fault.

`verify` reads a run folder, a bundle or an entry as something that a stranger made:
nothing in it is believed, imported or executed.
"""

from ragen_bench.verifying.faults import CODES as CODES
from ragen_bench.verifying.faults import WARNINGS as WARNINGS
from ragen_bench.verifying.faults import Fault as Fault
from ragen_bench.verifying.verification import Verification as Verification
from ragen_bench.verifying.verification import verify as verify
