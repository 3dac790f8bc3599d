-- Clips without a split
-- severity: warning
-- needs: clips.split
-- means: Neither training nor evaluation takes them.
-- remedy: name a split in the listing, or let the policy make splits
SELECT clip_id, uri FROM clips WHERE split IS NULL ORDER BY clip
