-- Which videos hardly change: the fewest bits for each pixel that is shown?
SELECT uri, round(8 * packet_bytes / (frame_count * width * height), 4) AS bits_a_pixel, width, height
FROM videos
WHERE status = 'ok' AND kind = 'video'
ORDER BY bits_a_pixel, uri
LIMIT 5
