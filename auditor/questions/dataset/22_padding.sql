-- What percentage of the frames of each label's clips is padding?
-- needs: clips.label
SELECT label, round(100 * sum(padded_frames) / sum(wanted_frames), 2) AS percent_padding,
    count(*) FILTER (WHERE padded_frames > 0) AS padded_clips
FROM clips
GROUP BY label
ORDER BY percent_padding DESC, label
