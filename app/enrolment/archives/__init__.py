"""Read archives of photos: tar, tar.gz, zip, or a folder of the server.

Archives are parsed in child processes only (`parser_process`), which `photo_files` starts. The modules that a child
imports need nothing but the standard library, so that it starts within a few hundredths of a second.
"""
