-- Files that changed since they were indexed
-- severity: error
-- needs: files
-- means: Their offsets are those of another file: clips of them are refused when loading.
-- remedy: index them again, and make the dataset anew
SELECT media_id, uri, found FROM files WHERE state = 'changed' ORDER BY uri
