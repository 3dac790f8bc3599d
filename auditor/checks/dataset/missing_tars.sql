-- Tars that no longer exist
-- severity: error
-- needs: tars
-- means: Clips in these tars cannot be read.
-- remedy: restore the tars, or pack the dataset again
SELECT name, found FROM tars WHERE state = 'gone' ORDER BY name
