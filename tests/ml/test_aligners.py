"""Alignment: five points come to lie on the template, whatever the photo's size, turn and scale."""

import numpy as np
import pytest
from skimage.data import astronaut

from ml.aligners.similarity import CROP_SIZES_PIXELS, TEMPLATES, Similarity
from ml.descriptors.base import CROP_SHAPES
from ml.geometry import inverse, moved, scaled, similarity, warp
from ml.synthetic_faces import person, photograph
from ml.types import CropKind, Points

SQUARE = np.array([(0, 0), (10, 0), (10, 10), (0, 10), (5, 5)], np.float32)


def turned(points: Points, degrees: float, zoom: float, shift: tuple[float, float]) -> Points:
    by = np.exp(1j * np.radians(degrees)) * zoom
    linear = np.array([[by.real, -by.imag], [by.imag, by.real]])
    return (points @ linear.T + shift).astype(np.float32)


def slow_similarity(source: Points, target: Points) -> np.ndarray:
    """Compute the similarity by Umeyama (1991), equations 40 to 43: by singular values, without reflection."""
    a, b = source - source.mean(0), target - target.mean(0)
    u, d, vt = np.linalg.svd(b.T @ a / len(a))
    sign = np.diag([1, np.sign(np.linalg.det(u) * np.linalg.det(vt))])
    rotation = u @ sign @ vt
    scale = np.trace(np.diag(d) @ sign) / a.var(0).sum()
    return np.column_stack([scale * rotation, target.mean(0) - scale * rotation @ source.mean(0)])


def test_an_exact_similarity_is_recovered() -> None:
    target = turned(SQUARE, 33, 2.5, (-7, 400))
    assert np.allclose(moved(similarity(SQUARE, target), SQUARE), target, atol=1e-3)


def test_it_equals_umeyama_by_singular_values() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        source, target = rng.normal(50, 20, (2, 5, 2))
        assert np.allclose(similarity(source, target), slow_similarity(source, target), atol=1e-6)


def test_a_similarity_is_never_a_mirror_image_and_coinciding_points_keep_the_scale() -> None:
    mirrored = SQUARE * (-1, 1)
    assert np.linalg.det(similarity(SQUARE, mirrored)[:, :2]) >= 0
    together = similarity(np.ones((5, 2)), SQUARE)
    assert np.allclose(together[:, :2], np.eye(2))


def test_the_inverse_transform_undoes_the_transform() -> None:
    there = similarity(SQUARE, turned(SQUARE, -70, 0.3, (9, 9)))
    assert np.allclose(moved(inverse(there), moved(there, SQUARE)), SQUARE, atol=1e-3)


@pytest.mark.parametrize("kind", ["grey", "colour"])
def test_crops_have_the_shapes_that_descriptors_take(kind: CropKind) -> None:
    crop = Similarity().crops(*photograph(person(0), 0))[kind]
    assert crop.shape == CROP_SHAPES[kind]
    assert crop.dtype == np.uint8
    assert CROP_SIZES_PIXELS[kind] == CROP_SHAPES[kind][1::-1]


@pytest.mark.parametrize("kind", ["grey", "colour"])
def test_a_dot_at_each_point_lands_on_the_template(kind: CropKind) -> None:
    points = turned(TEMPLATES["grey"], 12, 2.0, (40, 60))
    photo = np.zeros((500, 500, 3), np.uint8)
    for x, y in np.round(points).astype(int):
        photo[y - 2 : y + 3, x - 2 : x + 3] = 255
    crop = Similarity().crops(photo, points)[kind].astype(float)
    crop = crop if crop.ndim == 2 else crop.mean(2)
    moved_points = moved(similarity(points, TEMPLATES[kind]), points)
    for x, y in moved_points:
        column, row = round(float(x)), round(float(y))
        patch = crop[row - 3 : row + 4, column - 3 : column + 4]
        rows, columns = np.mgrid[row - 3 : row + 4, column - 3 : column + 4]
        assert abs((columns * patch).sum() / patch.sum() - x) < 0.6
        assert abs((rows * patch).sum() / patch.sum() - y) < 0.6


def test_a_turned_and_larger_face_gives_nearly_the_same_crop() -> None:
    photo, points = photograph(person(1), 0, 400)
    view = similarity(points, turned(points, 25, 0.7, (150, -20)))
    other = warp(photo, view, (500, 500))
    plain, again = (Similarity().crops(p, q)["grey"] for p, q in ((photo, points), (other, moved(view, points))))
    assert np.abs(plain.astype(int)[20:150, 20:80] - again[20:150, 20:80]).mean() < 4


def test_shrinking_averages_instead_of_picking_pixels() -> None:
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 2, (1600, 1600, 3)).astype(np.uint8) * 255
    shrunk = warp(noise, scaled(0.1, np.full(2, 799.5), np.full(2, 79.5)), (160, 160))
    assert shrunk.std() < 20


@pytest.mark.parametrize("scale", [0.49, 0.3, 0.11, 0.02])
def test_shrinking_keeps_things_in_their_place(scale: float) -> None:
    ramp = np.repeat(np.linspace(0, 255, 1201)[None], 1201, 0)
    photo = np.repeat(ramp[:, :, None], 3, 2).astype(np.uint8)
    size = int(1200 * scale) - 2
    view = scaled(scale, np.full(2, 600), np.full(2, (size - 1) / 2))
    row = warp(photo, view, (size, size))[size // 2, :, 0].astype(float)
    wanted = (inverse(view)[0, 0] * np.arange(size) + inverse(view)[0, 2]) / 1200 * 255
    assert np.abs(row - wanted).max() < 3


def test_outside_the_photo_its_rim_is_repeated() -> None:
    photo = np.full((50, 50, 3), 77, np.uint8)
    crops = Similarity().crops(photo, (TEMPLATES["grey"] / 4).astype(np.float32))
    assert (crops["grey"] == 77).all()
    assert (crops["colour"] == 77).all()


def test_a_real_face_is_cut_upright_with_dark_eyes_where_eyes_belong() -> None:
    points = np.array([(205, 110), (245, 106), (228, 130), (212, 150), (246, 147)], np.float32)
    crop = Similarity().crops(astronaut(), points)["grey"].astype(float)
    eyes = np.mean([crop[57:68, x - 5 : x + 6].mean() for x in (28, 72)])
    assert eyes < crop[75:95, 20:40].mean()
