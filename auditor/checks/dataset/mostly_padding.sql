-- Clips that are padding for the most part
-- severity: warning
-- means: More than half of their places show no frame of their own.
-- remedy: let the policy leave out what is too short (short: skip, last: drop), or shorten the clips
SELECT clip_id, uri, padded_frames, wanted_frames FROM clips
WHERE padded_frames * 2 > wanted_frames ORDER BY padded_frames / wanted_frames DESC, clip
