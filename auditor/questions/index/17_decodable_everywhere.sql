-- How many hours of video can each generation of NVIDIA GPUs decode?
SELECT generation, sum(videos)::BIGINT AS videos, round(sum(hours), 2) AS hours
FROM formats n JOIN nvdec d USING (codec, chroma, bits)
WHERE n.width <= most_width AND n.height <= most_height
GROUP BY generation
ORDER BY hours, generation
