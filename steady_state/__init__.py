"""The steady state: what is measured of a cluster and its job, and whether it is as it should be.

``probes`` measure one thing each; ``tolerance`` says whether a value is right, and never raises; ``hypothesis`` puts
the two together, each probe in a thread of its own with its own time limit. A workload is seen through ``view`` alone.
Whatever a probe meets (nothing, NaN, a refused connection, a hang) is a failure of that probe, told as a value.
"""

from steady_state.contract import Measurement, Probe, ProbeFailed
from steady_state.hypothesis import Checks, Condition, Hold, Hypothesis
from steady_state.probes import PROBES
from steady_state.tolerance import Outcome, Tolerance, ToleranceError, tolerance
from steady_state.view import Member, WorkloadView

__all__ = [
    "PROBES",
    "Checks",
    "Condition",
    "Hold",
    "Hypothesis",
    "Measurement",
    "Member",
    "Outcome",
    "Probe",
    "ProbeFailed",
    "Tolerance",
    "ToleranceError",
    "WorkloadView",
    "tolerance",
]
