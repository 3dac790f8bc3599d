-- Clips with another number of frames than most
-- severity: warning
-- means: Clips of different lengths cannot be stacked into one tensor.
-- remedy: set collate="pad" in the loader, or use a policy that pads clips
SELECT clip_id, uri, wanted_frames FROM clips
WHERE wanted_frames <> (
    SELECT wanted_frames FROM clips GROUP BY wanted_frames ORDER BY count(*) DESC, wanted_frames LIMIT 1)
        ORDER BY wanted_frames, clip
