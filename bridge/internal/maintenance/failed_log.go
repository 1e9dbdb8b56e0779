package maintenance

import (
	"context"
	"log/slog"

	"github.com/qsidecar/qsidecar/backends"
)

const (
	logReaped = "jobs were taken back"
	logDied   = "jobs are dead"
)

// LogFailed logs how many jobs maintenance reaped or found too large. The sidecar of their workers logs the jobs
// themselves.
func LogFailed(log *slog.Logger, all backends.FailedCounts) {
	for _, f := range all {
		level, text := slog.LevelInfo, logReaped
		if f.Dead {
			level, text = slog.LevelWarn, logDied
		}
		log.Log(context.Background(), level, text, "queue", f.Queue, "cause", string(f.Cause), "jobs", f.Jobs)
	}
}
