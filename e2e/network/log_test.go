package network

import (
	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// logsAnOutage checks that an outage of a database and its end are logged, each once.
func logsAnOutage(sc *kit.Sidecar) {
	sc.T.Helper()
	var texts map[string]int
	testwait.Until(sc.T, "the outage and its end are logged", func() bool {
		texts = sc.Texts()
		return texts["commits reach the database again"] > 0 && texts["a commit failed and is tried again"] > 0
	})
	lines := 0
	for _, n := range texts {
		lines += n
	}
	if lines > 40 {
		sc.T.Errorf("an outage of the database is logged in %d lines: %v", lines, texts)
	}
}
