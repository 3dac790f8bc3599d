-- Files that are no longer there
-- severity: error
-- needs: files
-- means: Clips of them cannot be read.
-- remedy: bring them back, or say where they are now with --root
SELECT media_id, uri, found FROM files WHERE state = 'gone' ORDER BY uri
