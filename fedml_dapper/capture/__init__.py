"""Training steps recorded once and replayed, for clients whose steps are alike: CUDA graphs."""

from fedml_dapper.capture.captures import Captures
from fedml_dapper.capture.eager import EAGER, Capture, TrainingStep
from fedml_dapper.capture.reading import Unchanging
from fedml_dapper.capture.recorders import CudaGraphs, Recorder

__all__ = ["EAGER", "Capture", "Captures", "CudaGraphs", "Recorder", "TrainingStep", "Unchanging"]
