-- Tars that the dataset does not use
-- severity: warning
-- needs: tars
-- means: A run that was replaced left these tars. They waste disk space, and readers of all tars of the folder would
--   read duplicate samples.
-- remedy: delete the tars
SELECT name, found FROM tars WHERE state = 'orphaned' ORDER BY name
