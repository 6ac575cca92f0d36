-- One lock's row with the time, and what becomes of the gate.
SELECT :record, :gate FROM :table AS l WHERE name = :name;
