waited AS (
    DELETE FROM {waiters} USING granted WHERE {waiters}.name = $1 AND hold = $3
)
