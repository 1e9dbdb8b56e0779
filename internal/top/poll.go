package top

import (
	"context"
	"fmt"
	"time"

	tea "charm.land/bubbletea/v2"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/protocol"
)

const (
	// callTimeout is how long a request waits for its answer, also while there is no connection.
	callTimeout = time.Minute

	// longTimeout applies to a request that changes any number of jobs.
	longTimeout = time.Hour

	// pollShare bounds the load: the pause between two refreshes is at least this many times as long
	// as the last one took, up to maxPause.
	pollShare = 3
	maxPause  = 30 * time.Second
)

// target is what a refresh reads.
type target struct {
	screen screen
	queue  string         // of jobsScreen and jobScreen
	state  protocol.State // of jobsScreen
	after  string         // of jobsScreen: the job before the page
	most   int            // of jobsScreen: the length of a page
	id     string         // of jobScreen
}

type (
	// tickMsg is sent once per interval.
	tickMsg time.Time

	// linkMsg reports the state of the connection: nil if it is up.
	linkMsg struct{ err error }

	// answerMsg is the result of a refresh. A part that the target doesn't need is nil.
	answerMsg struct {
		target     target
		server     string
		stats      []protocol.QueueStat
		status     *protocol.Status
		jobs       []protocol.JobView
		statsErr   error
		statusErr  error
		jobsErr    error
		start, end time.Time
	}

	// doneMsg is the result of an action.
	doneMsg struct {
		text string
		err  error
	}
)

func (m *model) tick() tea.Cmd {
	return tea.Tick(m.interval, func(t time.Time) tea.Msg { return tickMsg(t) })
}

// poll reads what the current screen shows, if no other refresh is in progress.
func (m *model) poll() tea.Cmd {
	if m.polling {
		return nil
	}
	m.polling = true
	client, t := m.client, m.target()
	return func() tea.Msg {
		ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
		defer cancel()
		a := answerMsg{target: t, start: time.Now()}
		a.read(ctx, client)
		a.server, a.end = client.Server().Server, time.Now()
		return a
	}
}

func (a *answerMsg) read(ctx context.Context, c *qsidecar.Client) {
	if rep, err := c.Call(ctx, &protocol.Request{Op: protocol.OpStatus}); err != nil {
		a.statusErr = err
	} else {
		a.status = rep.Status
	}
	switch t := a.target; t.screen {
	case queuesScreen:
		a.stats, a.statsErr = c.Stats(ctx, "")
	case jobsScreen:
		a.stats, a.statsErr = c.Stats(ctx, t.queue)
		a.jobs, a.jobsErr = c.Peek(ctx, qsidecar.Peek{Queue: t.queue, State: t.state, Max: t.most, After: t.after})
	case jobScreen:
		a.jobs, a.jobsErr = c.Peek(ctx, qsidecar.Peek{Queue: t.queue, IDs: []string{t.id}})
	}
}

// action runs f in the background. Its result becomes the message at the bottom.
func (m *model) action(doing string, limit time.Duration, f func(context.Context, *qsidecar.Client) (string, error)) tea.Cmd {
	m.busy, m.message = true, doing
	client := m.client
	return func() tea.Msg {
		ctx, cancel := context.WithTimeoutCause(context.Background(), limit, fmt.Errorf("the sidecar did not answer within %v", limit))
		defer cancel()
		text, err := f(ctx, client)
		return doneMsg{text, err}
	}
}
