-- Clips of other lengths than most
-- severity: warning
-- means: They cannot be stacked into one tensor.
-- remedy: collate="pad" in the loader, or a policy that pads
SELECT clip_id, uri, wanted_frames FROM clips
WHERE wanted_frames <> (SELECT mode(wanted_frames) FROM clips) ORDER BY wanted_frames, clip
