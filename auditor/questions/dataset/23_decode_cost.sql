-- How many packets and bytes does a clip need, by codec and picture size?
SELECT codec, width, height, count(*) AS clips,
    round(avg(decoded_packets / distinct_frames), 1) AS packets_a_frame,
    round(avg(bytes_read) / 1e6, 3) AS megabytes
FROM clips
WHERE distinct_frames > 0
GROUP BY ALL
ORDER BY packets_a_frame DESC, codec, width, height
LIMIT 8
