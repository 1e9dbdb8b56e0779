package top

import (
	"slices"

	"charm.land/bubbles/v2/key"
	tea "charm.land/bubbletea/v2"

	"github.com/qsidecar/qsidecar/protocol"
)

// states are the tabs of jobsScreen, in order; see model.tabs.
var states = []protocol.State{protocol.StateReady, protocol.StateBlocked, protocol.StateScheduled, protocol.StateClaimed, protocol.StateDead, protocol.StateDone}

// navigate handles a key that moves the cursor or opens another screen. It reports whether the key
// is one of these.
func (m *model) navigate(msg tea.KeyPressMsg) (tea.Cmd, bool) {
	if m.moveCursor(msg) {
		return nil, true
	}
	switch {
	case key.Matches(msg, keyQueues):
		return m.open(queuesScreen), true
	case key.Matches(msg, keyWorkers):
		return m.open(workersScreen), true
	case key.Matches(msg, keyDatabases):
		return m.open(databasesScreen), true
	case key.Matches(msg, keyNextTab):
		return m.turn(1), true
	case key.Matches(msg, keyPrevTab):
		return m.turn(-1), true
	case key.Matches(msg, keyBack):
		return m.goBack(), true
	case key.Matches(msg, keyOpen):
		return m.openSelected(), true
	case m.screen == jobsScreen && key.Matches(msg, keyNext):
		if n := len(m.jobs); n > 0 && m.read == m.target() {
			m.after = m.jobs[n-1].ID
			return m.open(jobsScreen), true
		}
		return nil, true
	case m.screen == jobsScreen && key.Matches(msg, keyFirst):
		m.after = ""
		return m.open(jobsScreen), true
	}
	return nil, false
}

// moveCursor moves the cursor of a table, or scrolls the text.
func (m *model) moveCursor(msg tea.KeyPressMsg) bool {
	page := m.text.Height()
	var by int
	switch {
	case key.Matches(msg, keyUp):
		by = -1
	case key.Matches(msg, keyDown):
		by = 1
	case key.Matches(msg, keyPageUp):
		by = -page
	case key.Matches(msg, keyPageDown):
		by = page
	case key.Matches(msg, keyHome):
		by = -1 << 40
	case key.Matches(msg, keyEnd):
		by = 1 << 40
	default:
		return false
	}
	if int(m.screen) < len(m.tables) {
		m.tables[m.screen].move(by)
	} else {
		m.text.SetYOffset(m.text.YOffset() + by)
	}
	return true
}

// open shows a screen and refreshes it.
func (m *model) open(s screen) tea.Cmd {
	m.screen = s
	if s > jobsScreen {
		m.text.GotoTop()
	}
	m.show()
	return m.poll()
}

// turn goes to another tab: of the lists, or of the states of a queue's jobs.
func (m *model) turn(by int) tea.Cmd {
	if m.screen <= databasesScreen {
		const tabs = int(databasesScreen) + 1
		return m.open(screen((int(m.screen) + by + tabs) % tabs))
	}
	if m.screen != jobsScreen {
		return nil
	}
	tabs := m.tabs()
	i := slices.Index(tabs, m.state)
	m.state, m.after = tabs[(i+by+len(tabs))%len(tabs)], ""
	return m.openJobs()
}

// tabs returns the tabs of jobsScreen. The one of blocked jobs is there only if it is open, or the queue has some.
func (m *model) tabs() []protocol.State {
	if m.queueStat.Blocked > 0 || m.state == protocol.StateBlocked {
		return states
	}
	return slices.DeleteFunc(slices.Clone(states), func(s protocol.State) bool { return s == protocol.StateBlocked })
}

// openJobs shows the jobs of the queue from the first one.
func (m *model) openJobs() tea.Cmd {
	m.jobs, m.jobsErr, m.read = nil, nil, target{}
	t := &m.tables[jobsScreen]
	t.cursor, t.offset = 0, 0
	return m.open(jobsScreen)
}

func (m *model) goBack() tea.Cmd {
	switch m.screen {
	case jobsScreen:
		return m.open(queuesScreen)
	case jobScreen:
		return m.open(jobsScreen)
	case detailsScreen:
		return m.open(m.from)
	}
	m.filter.SetValue("")
	m.show()
	return nil
}

// openSelected opens the row at the cursor.
func (m *model) openSelected() tea.Cmd {
	if int(m.screen) >= len(m.tables) {
		return nil
	}
	selected := m.tables[m.screen].selected()
	if selected == "" {
		return nil
	}
	switch m.screen {
	case queuesScreen:
		m.queue, m.state, m.after = selected, protocol.StateReady, ""
		m.queueStat = protocol.QueueStat{Queue: selected}
		if i := slices.IndexFunc(m.queues, func(q protocol.QueueStat) bool { return q.Queue == selected }); i >= 0 {
			m.queueStat = m.queues[i]
		}
		return m.openJobs()
	case jobsScreen:
		m.job, m.shown = selected, nil
		if i := slices.IndexFunc(m.jobs, func(v protocol.JobView) bool { return v.ID == selected }); i >= 0 {
			m.shown = m.jobs[i : i+1]
		}
		return m.open(jobScreen)
	}
	m.from, m.details = m.screen, selected
	return m.open(detailsScreen)
}
