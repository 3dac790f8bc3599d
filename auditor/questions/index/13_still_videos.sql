-- Which videos hardly change, measured in bits per pixel of frames that are not random access points?
SELECT videos.uri, round(8 * sum(frames.size_bytes) / (count(*) * videos.width * videos.height), 5) AS bits_a_pixel,
    count(*) AS frames, videos.width, videos.height
FROM frames JOIN videos USING (media_id)
WHERE status = 'ok' AND kind = 'video' AND NOT is_start
GROUP BY media_id, videos.uri, videos.width, videos.height
ORDER BY bits_a_pixel, videos.uri
LIMIT 20
