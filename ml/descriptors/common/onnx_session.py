"""Open ONNX Runtime sessions, on the GPU where one is available."""

from typing import Any

import onnxruntime

from ml.descriptors.common.stored_model import Device
from ml.errors import Unavailable

GPU_PROVIDER = "CUDAExecutionProvider"


def open_session(model: str | bytes, threads: int, device: Device) -> Any:
    """Open a session of a model file, given as its path or its content. Several threads can share the session.

    threads: of one run
    Raises Unavailable if device is "cuda" and there is no GPU, and the exceptions of ONNX Runtime.
    """
    gpu = device != "cpu" and GPU_PROVIDER in onnxruntime.get_available_providers()
    if device == "cuda" and not gpu:
        raise Unavailable("ONNX Runtime finds no GPU; install onnxruntime-gpu, or set device to auto or cpu")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, providers=[GPU_PROVIDER] * gpu + ["CPUExecutionProvider"])
