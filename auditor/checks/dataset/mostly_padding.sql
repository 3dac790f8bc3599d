-- Clips that consist mostly of padding
-- severity: warning
-- means: More than half of the frames of these clips are padding.
-- remedy: let the policy leave out media or clips that are too short (short: skip, last: drop), or make shorter clips
SELECT clip_id, uri, padded_frames, wanted_frames FROM clips
WHERE padded_frames * 2 > wanted_frames ORDER BY padded_frames / wanted_frames DESC, clip
