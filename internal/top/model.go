package top

import (
	"time"

	"charm.land/bubbles/v2/key"
	"charm.land/bubbles/v2/textinput"
	"charm.land/bubbles/v2/viewport"
	tea "charm.land/bubbletea/v2"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/protocol"
)

// screen is what the view shows.
type screen int

const (
	queuesScreen screen = iota
	workersScreen
	databasesScreen
	jobsScreen    // of one queue, in one state
	jobScreen     // one job
	detailsScreen // of a worker or a database
	screens
)

// model is the state of the view. Bubble Tea calls its methods one at a time.
type model struct {
	client   *qsidecar.Client
	interval time.Duration

	width, height int
	screen        screen
	showHelp      bool
	tables        [jobsScreen + 1]table
	text          viewport.Model // of jobScreen and detailsScreen

	sortBy  string // the title of a column of queuesScreen; empty: the first
	reverse bool
	filter  textinput.Model // of queuesScreen and workersScreen

	queue   string         // that jobsScreen and jobScreen show
	state   protocol.State // of the jobs
	after   string         // the last job before the page
	job     string         // the id of the job of jobScreen
	from    screen         // below detailsScreen
	details string         // the worker or database of detailsScreen

	server    string
	queues    []protocol.QueueStat
	queueStat protocol.QueueStat // of queue
	status    *protocol.Status
	jobs      []protocol.JobView // of jobsScreen
	shown     []protocol.JobView // of jobScreen: one, or none if it is gone
	read      target             // what jobs or shown were read for last
	rates     rates
	workers   map[string]int // by queue

	statsErr, statusErr, jobsErr error

	link     error // why there is no connection; nil if there is one
	polling  bool
	broken   bool      // the connection broke during the refresh
	nextPoll time.Time // not before
	answered time.Time // the last complete refresh
	now      time.Time

	busy     bool // an action is in progress
	message  string
	question *question
}

// question is an action that waits for a confirmation.
type question struct {
	text string
	yes  func() tea.Cmd
}

func newModel(interval time.Duration) *model {
	m := &model{interval: interval, width: 80, height: 24, state: protocol.StateReady, text: viewport.New(), filter: textinput.New()}
	m.text.SoftWrap = true
	m.filter.Prompt = "/"
	styles := m.filter.Styles()
	styles.Cursor.Blink = false
	m.filter.SetStyles(styles)
	m.layout()
	return m
}

// Init implements tea.Model.
func (m *model) Init() tea.Cmd { return tea.Batch(m.tick(), m.poll()) }

// Update implements tea.Model.
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
		m.layout()
		return m, nil
	case tickMsg:
		m.now = time.Time(msg)
		if m.now.Before(m.nextPoll) {
			return m, m.tick()
		}
		return m, tea.Batch(m.tick(), m.poll())
	case linkMsg:
		return m, m.setLink(msg.err)
	case answerMsg:
		return m, m.setAnswer(msg)
	case doneMsg:
		m.busy, m.message = false, msg.text
		if msg.err != nil {
			m.message = msg.err.Error()
		}
		return m, m.poll()
	case tea.KeyPressMsg:
		return m, m.press(msg)
	}
	return m, m.edit(msg)
}

// layout gives the parts their sizes.
func (m *model) layout() {
	rows := max(1, m.height-frameLines)
	for i := range m.tables {
		m.tables[i].height = max(1, rows-1)
		m.tables[i].move(0)
	}
	m.text.SetWidth(m.width)
	m.text.SetHeight(rows)
	m.filter.SetWidth(max(1, m.width-4))
	m.show()
}

// target returns what a refresh reads.
func (m *model) target() target {
	t := target{screen: m.screen}
	switch m.screen {
	case jobsScreen:
		t.queue, t.state, t.after, t.most = m.queue, m.state, m.after, min(m.tables[jobsScreen].height, protocol.MaxList)
	case jobScreen:
		t.queue, t.id = m.queue, m.job
	}
	return t
}

func (m *model) setLink(err error) tea.Cmd {
	m.link = err
	if err != nil {
		m.broken = true
		return nil
	}
	m.nextPoll = time.Time{}
	return m.poll()
}

// setAnswer takes over the result of a refresh. If the user went to another screen in the meantime,
// it starts the refresh of that one.
func (m *model) setAnswer(a answerMsg) tea.Cmd {
	m.polling, m.now = false, a.end
	m.server = a.server
	if m.statusErr = a.statusErr; a.statusErr == nil {
		m.status, m.answered = a.status, a.end
	}
	if a.target.screen == queuesScreen {
		if m.statsErr = a.statsErr; a.statsErr == nil {
			m.queues, m.answered = a.stats, a.end
			m.rates.add(a.end, a.stats)
		}
	}
	if a.target != m.target() {
		m.show()
		return m.poll()
	}
	m.setJobs(a)
	// A refresh that took long has a longer pause after it.
	m.nextPoll = time.Time{}
	if pause := min(pollShare*a.end.Sub(a.start), maxPause); pause > m.interval && !m.broken {
		m.nextPoll = a.end.Add(pause)
	}
	m.broken = false
	m.show()
	return nil
}

// setJobs takes over the jobs of a refresh, if it read some.
func (m *model) setJobs(a answerMsg) {
	m.jobsErr = a.jobsErr
	switch {
	case a.target.screen == jobScreen && a.jobsErr == nil:
		m.shown, m.read, m.answered = a.jobs, a.target, a.end
	case a.target.screen != jobsScreen:
		return
	case a.jobsErr == nil:
		m.jobs, m.read, m.answered = a.jobs, a.target, a.end
	}
	if m.statsErr = a.statsErr; a.statsErr == nil {
		m.queueStat = protocol.QueueStat{Queue: m.queue}
		if len(a.stats) > 0 {
			m.queueStat = a.stats[0]
		}
	}
	if a.target.after != "" && qsidecar.IsCode(a.jobsErr, protocol.CodeBadRequest) {
		m.after, m.jobsErr, m.message = "", nil, "the last job of the page before is gone: this is the first page"
	}
}

// edit gives a message to the filter while it is edited.
func (m *model) edit(msg tea.Msg) tea.Cmd {
	if !m.filter.Focused() {
		return nil
	}
	var cmd tea.Cmd
	m.filter, cmd = m.filter.Update(msg)
	m.show()
	return cmd
}

// press handles a key.
func (m *model) press(msg tea.KeyPressMsg) tea.Cmd {
	switch {
	case msg.String() == "ctrl+c":
		return tea.Quit
	case m.question != nil:
		q := m.question
		m.question, m.message = nil, "nothing was done"
		if msg.String() == "y" || msg.String() == "Y" {
			return q.yes()
		}
		return nil
	case m.filter.Focused():
		switch msg.String() {
		case "esc":
			m.filter.SetValue("")
			m.filter.Blur()
		case "enter":
			m.filter.Blur()
		default:
			return m.edit(msg)
		}
		m.show()
		return nil
	case m.showHelp:
		m.showHelp = false
		return nil
	}
	if !m.busy {
		m.message = ""
	}
	switch {
	case key.Matches(msg, keyQuit):
		return tea.Quit
	case key.Matches(msg, keySuspend):
		return tea.Suspend
	case key.Matches(msg, keyHelp):
		m.showHelp = true
		return nil
	}
	if cmd, ok := m.navigate(msg); ok {
		return cmd
	}
	return m.act(msg)
}
