package kit

import (
	"os"
	"regexp"
	"strings"
)

// Texts counts the lines of a log by text, in either log format.
func (sc *Sidecar) Texts() map[string]int {
	sc.T.Helper()
	log, err := os.ReadFile(sc.LogFile)
	if err != nil {
		sc.T.Fatal(err)
	}
	counts := map[string]int{}
	for _, m := range logText.FindAllSubmatch(log, -1) {
		counts[strings.Trim(string(m[1])+string(m[2]), `"`)]++
	}
	return counts
}

var logText = regexp.MustCompile(`(?m)(?:^time=\S+ level=\w+ msg=("[^"]*"|\S+))|"msg":("[^"]*")`)
