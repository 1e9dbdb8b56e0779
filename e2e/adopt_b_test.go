package e2e

// systemB is a table whose consumers keep a transaction open for the whole of the
// work: nothing in a row says that somebody has it.
var systemB = adoption{
	name: "b",
	ddl: `CREATE TABLE worker_queue (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, command text NOT NULL,
		is_done boolean NOT NULL DEFAULT FALSE, failure_count smallint NOT NULL DEFAULT 0);
		CREATE INDEX ON worker_queue (id) WHERE NOT is_done;
		INSERT INTO worker_queue (command) SELECT n FROM generate_series(1, %d) n;`,
	config: `
    table: worker_queue
    columns: {id: id, payload: command, state: is_done, attempts: failure_count}
    states: {ready: false, done: true}
    max_attempts: 3
    hold: transaction
`,
	open:  `SELECT count(*)::text FROM worker_queue WHERE NOT is_done`,
	rows:  `SELECT concat_ws(' ', id, 'done', '-', is_done) FROM worker_queue`,
	by:    func(string) string { return "-" },
	stuck: true,
	last: func(r *adopting) {
		// Of those who died one was a worker of a sidecar that lived: it failed. What its own
		// dead consumer had, and what the dead sidecar had, is as it was.
		if got := r.db.texts(`SELECT concat(sum(failure_count), '') FROM worker_queue`); got[0] != "1" {
			r.t.Errorf("the failures of all rows are %v, want 1", got)
		}
	},
}
