"""Answers as the document shows them: of one task with an explanation, of a mix of two, of a comparison."""

from typing import Any

from app.db import examples

SCORE: dict[str, Any] = {
    "distance": 0.41, "similarity": 98.2, "probability": 0.982, "fmr_estimate": 0.0001,
    "person_distance": 0.22, "passes": True,
}  # fmt: skip
THRESHOLD: dict[str, Any] = {
    "kind": "fpir", "fpir": 0.01, "fmr": None, "distance": 0.31, "possible_distance": 0.42, "similarity": None,
    "low": 0.0055, "high": 0.0163, "enough": True,
    "evidence": {
        "source": "leave-one-out", "people": 500, "searches": 2431, "measured_faces": 2431, "gallery_faces": 2440,
        "more_people": 0, "rule": {"template_weight": 0.6667, "margin_weight": 0.75},
    },
    "note": None,
}  # fmt: skip
PAIRS: dict[str, Any] = THRESHOLD | {
    "kind": "fmr", "fpir": None, "fmr": 0.00097, "distance": 0.7, "possible_distance": None, "similarity": 88.0,
    "low": 0.00064, "high": 0.0014, "evidence": None,
}  # fmt: skip
SUBJECT: dict[str, Any] = {"id": examples.SUBJECT, "external_id": examples.EXTERNAL_ID}
MATCH: dict[str, Any] = {
    "face_id": examples.FACE,
    "subject": SUBJECT,
    "role": "gallery",
}
PART: dict[str, Any] = {
    "task": "identity",
    "descriptor": "lbp",
    "contribution": 0.41,
    "grid": {"crop": "grey", "rows": 3, "columns": 2, "size": 50},
    "cells": [[0.21, 0.12], [-0.02, 0.06], [0.03, 0.01]],
}
FACES: dict[str, Any] = {"faces": [{"face_id": examples.FACE, "distance": 0.41, "similarity": 98.2}]}
EXPLAINED = MATCH | SCORE | FACES | {"explanation": {"distance": 0.41, "parts": [PART], "rest": 0.0}}
EXAMPLE: dict[str, Any] = {
    "faces": [{"bounding_box": examples.BOX, "decision": "match", "subject": SUBJECT, "matches": [EXPLAINED]}],
    "model": examples.MODEL,
    "index_generation": "3.1042",
    "task": "identity",
    "m": 8,
    "fraction": 0.07,
    "calibrated": True,
    "threshold": THRESHOLD,
}
ORDERED: dict[str, Any] = {
    "distance": 0.49, "similarity": None, "probability": None, "fmr_estimate": None,
    "person_distance": None, "passes": None,
}  # fmt: skip
WEIGHED: dict[str, Any] = {
    "task": "identity", "share": 0.7, "scale": 1.0, "model": examples.MODEL, "index_generation": "3.1042", "m": 8,
}  # fmt: skip
MIXED: dict[str, Any] = EXAMPLE | {
    "faces": [
        {
            "bounding_box": examples.BOX,
            "decision": None,
            "subject": None,
            "matches": [MATCH | ORDERED | {"distances": {"identity": 0.4, "age": 0.35}}],
        }
    ],
    "index_generation": "3.1042,1.1042",
    "task": "identity:0.7,age:0.3",
    "fraction": 0.14,
    "calibrated": False,
    "threshold": None,
    "tasks": [WEIGHED, WEIGHED | {"task": "age", "share": 0.3, "scale": 0.5, "index_generation": "1.1042"}],
    "complete": True,
}
VERDICT: dict[str, Any] = {
    **SCORE,
    "person_distance": None,
    "bounding_boxes": [examples.BOX, examples.BOX],
    "face_id": None,
    "model": examples.MODEL,
    "index_generation": "3.1042",
    "task": "identity",
    "calibrated": True,
    "threshold": PAIRS,
}
