waited AS (
    DELETE FROM {waiters} USING f WHERE name = $1 AND hold = $6
)
