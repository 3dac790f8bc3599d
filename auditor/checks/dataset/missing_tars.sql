-- Tars that are no longer there
-- severity: error
-- needs: tars
-- means: Their clips cannot be read.
-- remedy: bring them back, or pack the dataset again
SELECT name, found FROM tars WHERE state = 'gone' ORDER BY name
