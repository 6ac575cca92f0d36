absorbed AS (

    DELETE FROM {waiters} USING written WHERE name = $1 AND hold = ANY($13)
)
