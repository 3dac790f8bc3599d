-- Clips without a split
-- severity: warning
-- needs: clips.split
-- means: These clips are used for neither training nor evaluation.
-- remedy: add the split to the listing, or let the policy define splits
SELECT clip_id, uri FROM clips WHERE split IS NULL ORDER BY clip
