-- Files that are no longer there
-- severity: error
-- needs: files
-- means: They were when they were indexed.
-- remedy: bring them back, or say where they are now with --root; framedex index notes that they are gone
SELECT media_id, uri, found FROM files WHERE state = 'gone' ORDER BY uri
