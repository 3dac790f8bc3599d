-- Clips of other lengths than most
-- severity: warning
-- means: They cannot be stacked into one tensor.
-- remedy: collate="pad" in the loader, or a policy that pads
SELECT clip_id, uri, wanted_frames FROM clips
WHERE wanted_frames <> (
    SELECT wanted_frames FROM clips GROUP BY wanted_frames ORDER BY count(*) DESC, wanted_frames LIMIT 1)
        ORDER BY wanted_frames, clip
