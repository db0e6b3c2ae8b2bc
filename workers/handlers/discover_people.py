"""Group the faces of a collection that have no name into clusters of one person."""

from typing import Any

from app.queue.messages import DiscoverPeople
from ml.people_discovery.discovery import discover_people, find_link_distance
from ml.people_discovery.neighbour_graph import find_links
from workers.context import JobContext
from workers.discovery.cluster_store import list_clusters, store_clusters
from workers.discovery.gallery import read_gallery
from workers.discovery.suggestions import confirm_suggestions
from workers.progress import PROGRESS_STEPS, report_progress

LINKS_END, MERGED_END = 700, 900
"""The steps of the job's progress at which the faces are linked, and merged."""


def discover_people_in_collection(message: DiscoverPeople, context: JobContext) -> dict[str, Any]:
    """Find clusters and store them: {"faces", "new_faces", "clusters", "with_suggested_subject"}.

    A second run starts from what the first one stored. Raises NotFound, Conflict (NotCalibrated), Interrupted,
    ml.Corrupt, ml.Unavailable.
    """
    gallery = read_gallery(context, message.collection, message.min_probability)
    with report_progress(context) as reporter:
        linking = reporter.phase("links", 0, LINKS_END)
        distance = find_link_distance(gallery.calibration, message.min_probability)
        sources = gallery.is_new.nonzero()[0]
        links = find_links(
            gallery.index, gallery.pks, sources, distance, progress=lambda done, total: linking(done, total, {})
        )
        merging = reporter.phase("merging", LINKS_END, MERGED_END)
        people = discover_people(
            gallery.index.rows(gallery.pks), links, gallery.model.metric, gallery.calibration, gallery.known,
            min_probability=message.min_probability, progress=lambda done, total: merging(done, total, {}),
        )  # fmt: skip
        clusters = confirm_suggestions(context, gallery, list_clusters(gallery, people))
        store_clusters(context, gallery, clusters, message.min_probability)
        reporter.phase("done", PROGRESS_STEPS, PROGRESS_STEPS)(1, 1, {})
    return {
        "faces": int((~gallery.is_named).sum()),
        "new_faces": len(sources),
        "clusters": len(clusters),
        "with_suggested_subject": sum(cluster.subject_pk is not None for cluster in clusters),
    }
