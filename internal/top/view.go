package top

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"charm.land/bubbles/v2/help"
	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/qsidecar/qsidecar/internal/textfmt"
	"github.com/qsidecar/qsidecar/internal/wiretext"
	"github.com/qsidecar/qsidecar/protocol"
)

// frameLines are the lines around the list: the title and the tabs, the message and the keys.
const frameLines = 4

// The colors are those of the terminal's theme. Bubble Tea removes them if NO_COLOR is set.
var (
	headStyle     = lipgloss.NewStyle().Bold(true)
	selectedStyle = lipgloss.NewStyle().Reverse(true)
	badStyle      = lipgloss.NewStyle().Foreground(lipgloss.Red)
	warnStyle     = lipgloss.NewStyle().Foreground(lipgloss.Yellow)
	alarmStyle    = lipgloss.NewStyle().Bold(true).Foreground(lipgloss.Red)
)

// show fills the list or the text of the screen from the data.
func (m *model) show() {
	switch m.screen {
	case queuesScreen:
		columns := m.queueColumns()
		m.list(columns, m.queueRows(), titleIndex(columns, m.sortBy))
	case workersScreen:
		m.list(workerColumns, m.workerRows(), -1)
	case databasesScreen:
		m.list(databaseColumns, m.databaseRows(), -1)
	case jobsScreen:
		m.list(jobColumns(m.state, m.jobs), m.jobRows(), -1)
	case jobScreen:
		m.text.SetContent(m.jobText())
	case detailsScreen:
		m.text.SetContent(m.detailsText())
	}
}

func (m *model) list(columns []column, rows []row, sorted int) {
	t := &m.tables[m.screen]
	t.columns, t.sorted = columns, sorted
	t.setRows(rows)
}

// View implements tea.Model.
func (m *model) View() tea.View {
	v := tea.NewView(strings.Join(m.lines(), "\n"))
	v.AltScreen = true
	v.WindowTitle = "qsidecar top"
	return v
}

// lines returns the lines of the screen, each at most as wide as it.
func (m *model) lines() []string {
	lines := []string{m.titleLine(), m.tabsLine()}
	rows := max(1, m.height-frameLines)
	switch {
	case m.showHelp:
		lines = append(lines, m.helpLines(rows)...)
	case int(m.screen) < len(m.tables):
		lines = append(lines, m.tables[m.screen].view(m.width)...)
	default:
		lines = append(lines, strings.Split(m.text.View(), "\n")...)
	}
	lines = append(lines[:min(len(lines), rows+2)], m.messageLine(), m.keysLine())
	for i, line := range lines {
		lines[i] = ansi.Truncate(line, m.width, "…")
	}
	return lines
}

// titleLine has the totals, and at the right the state of the connection.
func (m *model) titleLine() string {
	left := textfmt.OneLine(m.server, 30)
	if m.server == "" {
		left = "qsidecar"
	}
	if m.status != nil {
		left += "  up " + wiretext.Age(m.status.UptimeMS)
	}
	if m.screen == queuesScreen && len(m.queues) > 0 { // the other screens don't refresh all queues
		var ready, claimed, dead int64
		approx := false
		for _, q := range m.queues {
			ready, claimed, dead = ready+q.Ready, claimed+q.Claimed, dead+q.Dead
			approx = approx || q.Approx
		}
		left += fmt.Sprintf("  ready %s  claimed %s  dead %s", count(ready, approx), count(claimed, approx), count(dead, approx))
	}
	right := "every " + textfmt.FormatDuration(m.interval)
	switch silent := m.now.Sub(m.answered); {
	case m.link != nil:
		right = alarmStyle.Render("disconnected, trying again")
	case m.answered.IsZero():
		right = "waiting for the first answer"
	case silent > max(3*m.interval, 3*time.Second) && m.polling:
		right = warnStyle.Render("last answer " + wiretext.Age(silent.Milliseconds()) + " ago")
	}
	space := m.width - ansi.StringWidth(right) - 1
	return fit(left, max(0, space), false) + " " + right
}

// tabsLine has the tabs of the screen, with the current one in reverse.
func (m *model) tabsLine() string {
	switch m.screen {
	case jobsScreen:
		return m.stateTabs()
	case jobScreen:
		return "job " + textfmt.OneLine(m.job, 60) + " of " + textfmt.OneLine(m.queue, 255)
	case detailsScreen:
		return textfmt.OneLine(m.details, 60)
	}
	workers, databases := 0, 0
	trouble := ""
	if m.status != nil {
		workers, databases = len(m.status.Sessions), len(m.status.Databases)
		for _, d := range m.status.Databases {
			if d.Error != "" {
				trouble = "  " + alarmStyle.Render("database "+d.Name+": ERROR")
			}
		}
	}
	tabs := []string{fmt.Sprintf(" 1 Queues %d ", len(m.queues)), fmt.Sprintf(" 2 Workers %d ", workers), fmt.Sprintf(" 3 Databases %d ", databases)}
	tabs[m.screen] = selectedStyle.Render(tabs[m.screen])
	line := strings.Join(tabs, " ")
	if f := m.filter.Value(); f != "" && m.screen <= workersScreen {
		line += "  filter: " + textfmt.OneLine(f, 40)
	}
	return line + trouble
}

func (m *model) stateTabs() string {
	q := m.queueStat
	counts := map[protocol.State]int64{
		protocol.StateReady: q.Ready, protocol.StateBlocked: q.Blocked, protocol.StateScheduled: q.Scheduled,
		protocol.StateClaimed: q.Claimed, protocol.StateDead: q.Dead, protocol.StateDone: q.Done,
	}
	var tabs []string
	for _, s := range m.tabs() {
		tab := fmt.Sprintf(" %s %s ", s, count(counts[s], q.Approx))
		if s == m.state {
			tab = selectedStyle.Render(tab)
		}
		tabs = append(tabs, tab)
	}
	line := strings.Join(tabs, "")
	name := textfmt.OneLine(m.queue, 255)
	if q.Paused {
		line += warnStyle.Render(" paused")
	}
	switch q.Limited {
	case protocol.LimitMaxClaimed:
		line += warnStyle.Render(fmt.Sprintf(" max %d claimed: reached", q.MaxClaimed.Value))
	case protocol.LimitRate:
		line += warnStyle.Render(" max " + q.Rate + ": reached")
	}
	if m.after != "" {
		line += " (not the first page)"
	}
	return ansi.Truncate(name, max(8, m.width-ansi.StringWidth(line)-1), "…") + " " + line
}

// messageLine has the most important of the question, the filter, the last message and the errors.
func (m *model) messageLine() string {
	switch {
	case m.question != nil:
		return alarmStyle.Render(m.question.text + " (y/N)")
	case m.filter.Focused():
		return m.filter.View()
	case m.message != "":
		return textfmt.OneLine(m.message, 1000)
	case m.link != nil:
		return textfmt.OneLine(m.link.Error(), 1000)
	}
	for _, err := range []error{m.statsErr, m.jobsErr, m.statusErr} {
		if err != nil {
			return badStyle.Render(textfmt.OneLine(err.Error(), 1000))
		}
	}
	if m.status != nil && m.status.ConfigError != "" {
		return warnStyle.Render("the newest config is not in use: " + textfmt.OneLine(m.status.ConfigError, 1000))
	}
	return m.emptyText()
}

// emptyText explains an empty list.
func (m *model) emptyText() string {
	if int(m.screen) >= len(m.tables) || len(m.tables[m.screen].rows) > 0 || m.answered.IsZero() {
		return ""
	}
	switch {
	case m.screen <= workersScreen && m.filter.Value() != "":
		return "nothing matches the filter; esc removes it"
	case m.screen == queuesScreen:
		return "no queue has a job"
	case m.screen == jobsScreen && m.read == m.target():
		return fmt.Sprintf("no job is %s", m.state)
	}
	return ""
}

func (m *model) keysLine() string {
	h := help.New()
	h.ShortSeparator = "  "
	h.SetWidth(m.width)
	h.Styles = help.Styles{ShortKey: headStyle}
	return h.ShortHelpView(m.shortHelp())
}

func (m *model) helpLines(rows int) []string {
	h := help.New()
	h.SetWidth(m.width)
	h.Styles = help.Styles{FullKey: headStyle}
	lines := []string{""}
	lines = append(lines, strings.Split(h.FullHelpView(fullHelp()), "\n")...)
	lines = append(lines, "", "IN/S and OUT/S are the jobs that this sidecar stored and acked per second, over",
		"the last 10 seconds. WORKERS of this sidecar have jobs of the queue now.", "~ marks an estimate.", "", "Any key closes this help.")
	return slices.Concat(lines, make([]string, max(0, rows-len(lines))))[:rows]
}
