package kit

import (
	"os"
	"regexp"
)

// Events counts the lines of a log by event, in either log format.
func (sc *Sidecar) Events() map[string]int {
	sc.T.Helper()
	log, err := os.ReadFile(sc.LogFile)
	if err != nil {
		sc.T.Fatal(err)
	}
	counts := map[string]int{}
	for _, m := range logEvent.FindAllSubmatch(log, -1) {
		counts[string(m[1])]++
	}
	return counts
}

var logEvent = regexp.MustCompile(`(?m)^(?:time=.*? event=|\{"time":.*?"event":")(\w+)`)
