package main

import "time"

// usage is the resource usage up to an instant. The difference of two is the usage in between.
type usage struct {
	at                      time.Time
	sidecar, database, self time.Duration // CPU time, user and system
	counts
}

func (u usage) since(v usage) usage {
	return usage{
		sidecar: u.sidecar - v.sidecar, database: u.database - v.database, self: u.self - v.self,
		counts: counts{known: u.known && v.known, statements: u.statements - v.statements, transactions: u.transactions - v.transactions},
	}
}
