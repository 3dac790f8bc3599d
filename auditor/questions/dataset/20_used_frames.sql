-- What share of each video's frames is in at least one clip?
SELECT v.uri, count(DISTINCT f.frame) AS shown, v.frame_count AS frames,
    round(100 * count(DISTINCT f.frame) / v.frame_count, 1) AS percent
FROM clip_frames f JOIN clips USING (clip_id) JOIN videos v USING (media_id)
GROUP BY v.media_id, v.uri, v.frame_count
ORDER BY percent, v.uri
LIMIT 5
