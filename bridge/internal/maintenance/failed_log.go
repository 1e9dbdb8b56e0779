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

// LogFailed says what maintenance took back, or found to be too large: in numbers, for who
// worked on the jobs is another sidecar's to say, or was said.
func LogFailed(log *slog.Logger, all backends.FailedCounts) {
	for _, f := range all {
		level, text := slog.LevelInfo, logReaped
		if f.Dead {
			level, text = slog.LevelWarn, logDied
		}
		log.Log(context.Background(), level, text, "queue", f.Queue, "cause", string(f.Cause), "jobs", f.Jobs)
	}
}
