-- Media that are readable, but whose frames cannot be shown to be exact
-- severity: warning
-- means: framedex leaves them out rather than give a frame that may be another one.
-- remedy: the reason says what would help; often it is copying the streams into another container
SELECT media_id, uri, error_kind, error_message FROM videos WHERE status = 'refused' AND error_kind <> 'no_video' ORDER BY error_kind, uri
