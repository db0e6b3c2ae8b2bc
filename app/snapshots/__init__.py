"""Snapshots: a consistent copy of the service or of one collection, as a folder of three files.

`manifest.json` describes it and is written last; `rows.sqlite` holds the rows, whatever database they come from;
`files.tar` holds photos, crops, models and recognisers. Every file is known by its SHA-256.
"""
