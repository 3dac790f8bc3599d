-- Rows of media that were probed again later: which part, and which row of it.
SELECT part, row FROM (
    SELECT part, row, row_number() OVER (PARTITION BY media_id ORDER BY part DESC, row DESC) AS age
    FROM videos_parts SEMI JOIN repeated USING (media_id)
)
WHERE age > 1
