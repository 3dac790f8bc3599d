-- How much disk space do duplicate files take?
SELECT count(*) AS files_too_many, round(sum(size_bytes) / 1e9, 3) AS gigabytes
FROM (
    SELECT size_bytes, row_number() OVER (PARTITION BY fingerprint ORDER BY uri) AS number
    FROM (SELECT DISTINCT uri, size_bytes, fingerprint FROM videos WHERE fingerprint NOT LIKE 'modified %'
        AND size_bytes > 0 AND (kind = 'video' OR container IS DISTINCT FROM 'files'))
)
WHERE number > 1
