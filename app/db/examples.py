"""The values that the examples of the OpenAPI document use, so that they agree in all slices."""

COLLECTION, SUBJECT, EXTERNAL_ID = "staff", "ada", "personnel-7"
FACE, OTHER_FACE = "7f9c24e5-0c1d-4f0e-9a53-5b1c6c1d2e3f", "1b4e28ba-2fa1-41d2-883f-0016d3cca427"
FIRST_MODEL, MODEL = "lbp-l2", "0647a1c05e9b3d2f8a61c4e7"
BUILT_IN_MODEL = "dlib-resnet-cosine"
JOB, KEY = "0647a1bf6d20e85b31f09c7a", "06479f00c2a1b47de6583f19"
TRAINING, EVALUATION = "0647a1bf6d1fa3c84e5b7d02", "0647a1d3aa04f1e96b2c8d75"
ERASURE = "0647a1e2b15c93d07f4ea86b"
SNAPSHOT = "0647a1f40c8e2b97d35f6a1c"
LABELLER, NEXT_TOKEN = "ana", "MTAw"
MOMENT, TIME = 1767225600.0, "2026-01-01T00:00:00Z"
BOX = {"x": 83.0, "y": 92.0, "width": 87.0, "height": 87.0}
