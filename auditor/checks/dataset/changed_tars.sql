-- Tars that are not as they were written
-- severity: error
-- needs: tars
-- means: Another size, or other content: loading refuses their clips.
-- remedy: bring them back, or pack the dataset again
SELECT name, found FROM tars WHERE state = 'changed' ORDER BY name
