-- How many frames are in one clip, in two clips, and so on?
SELECT clips_showing_it, count(*) AS frames
FROM (
    SELECT c.media_id, f.frame, count(DISTINCT clip_id) AS clips_showing_it
    FROM clip_frames f JOIN clips c USING (clip_id)
    WHERE f.frame IS NOT NULL
    GROUP BY c.media_id, f.frame
)
GROUP BY clips_showing_it
ORDER BY clips_showing_it
LIMIT 8
