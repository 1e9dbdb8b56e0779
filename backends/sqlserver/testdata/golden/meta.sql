SELECT m.version, m.min_program, m.database_id FROM [qsidecar].qsidecar_meta AS m;
