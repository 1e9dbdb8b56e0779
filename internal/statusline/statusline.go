// Package statusline shows on a terminal that a command works, and how far it is.
//
// Show is the whole interface, Remaining a text for it.
package statusline

import (
	"context"
	"fmt"
	"io"
	"time"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/internal/wiretext"
	"github.com/qsidecar/qsidecar/protocol"
)

// Interval is the usual time between two updates. A command that takes less shows no progress.
const Interval = time.Second

// Show writes a line to a terminal at an interval: text, and the time since the start. text can ask the sidecar: its ctx ends with
// the command. stop removes the line. The cursor stays at its start, so that a log line overwrites it.
func Show(ctx context.Context, terminal io.Writer, interval time.Duration, text func(ctx context.Context) string) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	start, ended := time.Now(), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(interval)
		defer tick.Stop()
		end := ""
		for {
			select {
			case <-tick.C:
			case <-ctx.Done():
				fmt.Fprint(terminal, end)
				return
			}
			if line := text(ctx); ctx.Err() == nil {
				fmt.Fprintf(terminal, "%s (%s)\x1b[K\r", line, wiretext.Age(time.Since(start).Milliseconds()))
				end = "\x1b[K"
			}
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}

// Remaining is the text for a request that changes all jobs of a queue in one state: how many are left, by the statistics.
func Remaining(c *qsidecar.Client, req *protocol.Request) func(context.Context) string {
	what, state := "deleting", req.State
	if req.Op == protocol.OpRetry {
		what, state = "retrying", protocol.StateDead
	}
	what = fmt.Sprintf("%s the %s jobs of %s …", what, state, req.Queue)
	return func(ctx context.Context) string {
		stats, err := c.Stats(ctx, req.Queue)
		if err != nil || len(stats) != 1 {
			return what // the user has no right to stats, for example
		}
		q := &stats[0]
		n := map[protocol.State]int64{
			protocol.StateReady: q.Ready, protocol.StateBlocked: q.Blocked, protocol.StateScheduled: q.Scheduled, protocol.StateDone: q.Done, protocol.StateDead: q.Dead,
		}[state]
		if q.Approx {
			return fmt.Sprintf("%s about %d left", what, n)
		}
		return fmt.Sprintf("%s %d left", what, n)
	}
}
