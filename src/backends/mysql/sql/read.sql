-- One lock's row with the time, and what becomes of the gate.
SELECT :record, :gate, bell FROM :table AS l WHERE name = :name;
