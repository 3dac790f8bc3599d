-- A dataset without clips
-- severity: error
-- means: There is nothing to load.
-- remedy: look at the failures and at the policy
SELECT 'no clip' AS found FROM (SELECT count(*) AS clips FROM clips) WHERE clips = 0
