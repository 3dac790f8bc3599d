-- Files that changed since they were indexed
-- severity: error
-- needs: files
-- means: The byte ranges in the manifest no longer match the files, so the loader refuses clips of them.
-- remedy: index the files again, and make the dataset again
SELECT media_id, uri, found FROM files WHERE state = 'changed' ORDER BY uri
