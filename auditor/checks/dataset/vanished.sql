-- Files that no longer exist
-- severity: error
-- needs: files
-- means: Clips of these files cannot be read.
-- remedy: restore the files, or pass their new root folder with --root
SELECT media_id, uri, found FROM files WHERE state = 'gone' ORDER BY uri
