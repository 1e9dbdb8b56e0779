package maintenance

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
)

// TestLostTransactionsAreExplained: the log names what can end the transaction of a claimed job.
func TestLostTransactionsAreExplained(t *testing.T) {
	t.Parallel()
	var text bytes.Buffer
	var all backends.FailedCounts
	all.Add("q", backends.CauseTxLost, false)
	all.Add("q", backends.CauseTimedOut, false)
	LogFailed(slog.New(slog.NewTextHandler(&text, nil)), all)
	if got := text.String(); strings.Count(got, "event=transactions_lost queue=q jobs=1") != 1 || !strings.Contains(got, "transaction_timeout") {
		t.Error(got)
	}
}
