-- Tars that changed since they were written
-- severity: error
-- needs: tars
-- means: The size or the content differs from the manifest, so the loader refuses their clips.
-- remedy: restore the tars, or pack the dataset again
SELECT name, found FROM tars WHERE state = 'changed' ORDER BY name
