-- Labels that some split lacks
-- severity: warning
-- needs: clips.label, clips.split
-- means: They are trained and never evaluated, or the other way round.
-- remedy: split with another seed or other shares, or add clips
WITH pairs AS (SELECT label, split FROM (SELECT DISTINCT label FROM clips WHERE label IS NOT NULL) CROSS
    JOIN (SELECT DISTINCT split FROM clips WHERE split IS NOT NULL))
SELECT label, split AS not_in FROM pairs ANTI JOIN clips USING (label, split) ORDER BY label, split
