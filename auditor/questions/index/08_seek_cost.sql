-- How many packets and bytes does one randomly chosen frame need, by codec?
SELECT codec, round(avg(seek_packets), 1) AS packets,
    round(avg(seek_packets * packet_bytes / packet_count) / 1e6, 3) AS megabytes
FROM videos
WHERE status = 'ok' AND kind = 'video'
GROUP BY codec
ORDER BY packets DESC, codec
