"""Import vectors that were made elsewhere: read the files of a client, and store them as faces in bulk."""
