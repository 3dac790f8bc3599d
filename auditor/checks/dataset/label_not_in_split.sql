-- Labels that are missing from a split
-- severity: warning
-- needs: clips.label, clips.split
-- means: A label may be trained but never evaluated, or evaluated but never trained.
-- remedy: split with another seed or other shares, or add clips of these labels
WITH pairs AS (SELECT label, split FROM (SELECT DISTINCT label FROM clips WHERE label IS NOT NULL) CROSS
    JOIN (SELECT DISTINCT split FROM clips WHERE split IS NOT NULL))
SELECT label, split AS not_in FROM pairs ANTI JOIN clips USING (label, split) ORDER BY label, split
