-- How many hours can each generation of NVIDIA GPUs decode?
SELECT generation, count(*) AS videos, round(sum(duration_seconds) / 3600, 2) AS hours
FROM videos JOIN nvdec USING (codec)
WHERE status = 'ok' AND chroma = chroma_format AND width <= most_width AND height <= most_height
    AND bits = CASE WHEN pixel_format LIKE '%10le' THEN 10 WHEN pixel_format LIKE '%12le' THEN 12 ELSE 8 END
GROUP BY generation
ORDER BY hours, generation
