package top

import (
	"context"
	"fmt"
	"slices"

	"charm.land/bubbles/v2/key"
	tea "charm.land/bubbletea/v2"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/internal/textfmt"
	"github.com/qsidecar/qsidecar/protocol"
)

// act handles a key that changes a queue or the list.
func (m *model) act(msg tea.KeyPressMsg) tea.Cmd {
	switch {
	case m.screen == queuesScreen && key.Matches(msg, keySort):
		columns := m.queueColumns()
		m.sortBy, m.reverse = columns[(titleIndex(columns, m.sortBy)+1)%len(columns)].title, false
		m.show()
	case m.screen == queuesScreen && key.Matches(msg, keyReverse):
		m.reverse = !m.reverse
		m.show()
	case m.screen <= workersScreen && key.Matches(msg, keyFilter):
		return m.filter.Focus()
	case key.Matches(msg, keyPause, keyAll, keyRetry):
		return m.ask(msg)
	}
	return nil
}

// ask starts an action that needs a confirmation.
func (m *model) ask(msg tea.KeyPressMsg) tea.Cmd {
	if m.busy {
		m.message = "wait until the last action has ended"
		return nil
	}
	q, ok := m.currentQueue()
	switch {
	case ok && key.Matches(msg, keyPause):
		m.askPause(q)
	case ok && key.Matches(msg, keyAll):
		m.askRetryAll(q)
	case key.Matches(msg, keyRetry):
		m.askRetry()
	}
	return nil
}

// currentQueue returns the queue that an action applies to.
func (m *model) currentQueue() (protocol.QueueStat, bool) {
	switch m.screen {
	case queuesScreen:
		name := m.tables[queuesScreen].selected()
		i := slices.IndexFunc(m.queues, func(q protocol.QueueStat) bool { return q.Queue == name })
		if i < 0 {
			return protocol.QueueStat{}, false
		}
		return m.queues[i], true
	case jobsScreen:
		return m.queueStat, true
	}
	return protocol.QueueStat{}, false
}

func (m *model) askPause(q protocol.QueueStat) {
	if q.Paused {
		m.question = &question{fmt.Sprintf("Resume %s on every host?", q.Queue), func() tea.Cmd {
			return m.action("resuming "+q.Queue+" …", callTimeout, func(ctx context.Context, c *qsidecar.Client) (string, error) {
				return "resumed " + q.Queue, c.Resume(ctx, q.Queue)
			})
		}}
		return
	}
	m.question = &question{fmt.Sprintf("Pause %s on every host?", q.Queue), func() tea.Cmd {
		return m.action("pausing "+q.Queue+" …", callTimeout, func(ctx context.Context, c *qsidecar.Client) (string, error) {
			return "paused " + q.Queue, c.Pause(ctx, q.Queue)
		})
	}}
}

func (m *model) askRetryAll(q protocol.QueueStat) {
	if q.Dead == 0 {
		m.message = fmt.Sprintf("%s has no dead job", q.Queue)
		return
	}
	m.question = &question{fmt.Sprintf("Retry all %s dead jobs of %s?", count(q.Dead, q.Approx), q.Queue), func() tea.Cmd {
		return m.action("retrying the dead jobs of "+q.Queue+" …", longTimeout, func(ctx context.Context, c *qsidecar.Client) (string, error) {
			n, err := c.RetryAll(ctx, q.Queue)
			return fmt.Sprintf("retried %s of %s", textfmt.Plural(n, "job"), q.Queue), err
		})
	}}
}

// askRetry is about the job at the cursor, or the one that is shown.
func (m *model) askRetry() {
	jobs, id := m.shown, m.job
	switch m.screen {
	case jobsScreen:
		jobs, id = m.jobs, m.tables[jobsScreen].selected()
	case jobScreen:
	default:
		return
	}
	i := slices.IndexFunc(jobs, func(v protocol.JobView) bool { return v.ID == id })
	if i < 0 {
		return
	}
	if jobs[i].State != protocol.StateDead {
		m.message = "only a dead job can be retried: this one is " + string(jobs[i].State)
		return
	}
	queue, shown := m.queue, textfmt.OneLine(id, 40)
	m.question = &question{fmt.Sprintf("Retry job %s of %s?", shown, queue), func() tea.Cmd {
		return m.action("retrying job "+shown+" …", callTimeout, func(ctx context.Context, c *qsidecar.Client) (string, error) {
			n, err := c.Retry(ctx, queue, []string{id})
			if n == 0 && err == nil {
				return fmt.Sprintf("job %s was not retried: it is not dead any more, or another job has its key", shown), nil
			}
			return fmt.Sprintf("retried job %s of %s", shown, queue), err
		})
	}}
}
