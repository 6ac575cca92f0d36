-- Takes a hold's row out before it is given back: one that is left tells that its holder vanished.
-- $1 name, $2 pid, $3 hold
DELETE FROM {sessions} WHERE name = $1 AND pid = $2 AND hold = $3
