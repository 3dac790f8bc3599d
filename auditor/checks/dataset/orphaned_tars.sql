-- Tars that no clip belongs to
-- severity: warning
-- needs: tars
-- means: Left by a run that was replaced; they take room, and readers that take every tar see samples twice.
-- remedy: remove them
SELECT name, found FROM tars WHERE state = 'orphaned' ORDER BY name
