-- Which clips need the most decoded packets?
SELECT clip_id, uri, decoded_packets, runs, round(bytes_read / 1e6, 2) AS megabytes
FROM clips
ORDER BY decoded_packets DESC, clip_id
LIMIT 5
