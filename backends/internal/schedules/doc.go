// Package schedules keeps schedules in the table qsidecar_schedules, once for all SQL engines.
//
// rules.go has what follows from a definition and the time: what a declaration changes, and which occurrences store jobs. The
// memory backend uses it too. Table carries that out with the SQL of a backends.Dialect. All of its transactions first lock the rows that
// they change. Start reading at Table.Fire.
package schedules
