-- Rows of media that were probed again later: which part, and which row of it.
SELECT _part, _row FROM (
    SELECT _part, _row, row_number() OVER (PARTITION BY media_id ORDER BY _part DESC, _row DESC) AS age
    FROM videos_parts SEMI JOIN repeated USING (media_id)
)
WHERE age > 1
