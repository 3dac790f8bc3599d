-- Files that changed since they were indexed
-- severity: error
-- needs: files
-- means: The byte ranges in the index no longer match the files, so the loader refuses clips of them.
-- remedy: index the files again, and make the datasets again
SELECT media_id, uri, found FROM files WHERE state = 'changed' ORDER BY uri
