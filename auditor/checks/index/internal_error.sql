-- Media at which framedex itself failed
-- severity: error
-- means: A bug of framedex, which says nothing about the media. Nothing of them is in the index but the traceback.
-- remedy: report it with the column error_traceback of its row; the next run tries it again
SELECT media_id, uri, error_message FROM videos WHERE error_kind = 'internal_error' ORDER BY uri
