-- Media in which a policy finds no clip
-- severity: warning
-- needs: policy_misses
-- means: These media are too short for the policy, or lack something that it requires. `reason` has the details.
-- remedy: ignore this, or relax the policy
SELECT media_id, uri, reason FROM policy_misses ORDER BY uri
