"""The face recognition library: from photos to embeddings, and what is computed from them. Arrays and files only."""

import os

# The packages of ONNX Runtime report usage to Microsoft, unless this is set before they are imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
