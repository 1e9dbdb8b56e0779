package network

import (
	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// logsAnOutage checks that an outage of a database and its end are logged, each once.
func logsAnOutage(sc *kit.Sidecar) {
	sc.T.Helper()
	var events map[string]int
	testwait.Until(sc.T, "the outage and its end are logged", func() bool {
		events = sc.Events()
		return events["commit_recovered"] > 0 && events["commit_failed"] > 0
	})
	lines := 0
	for _, n := range events {
		lines += n
	}
	if lines > 40 {
		sc.T.Errorf("an outage of the database is logged in %d lines: %v", lines, events)
	}
}
