-- Media in which a policy finds no clip
-- severity: warning
-- needs: policy_misses
-- means: Too short, or without what the policy asks for; `reason` says which.
-- remedy: leave it, or loosen the policy
SELECT media_id, uri, reason FROM policy_misses ORDER BY uri
