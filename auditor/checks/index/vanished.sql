-- Files that no longer exist
-- severity: error
-- needs: files
-- means: The files existed when they were indexed.
-- remedy: restore the files, or pass their new root folder with --root; framedex index marks missing files as gone
SELECT media_id, uri, found FROM files WHERE state = 'gone' ORDER BY uri
