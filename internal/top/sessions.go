package top

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/qsidecar/qsidecar/internal/textfmt"
	"github.com/qsidecar/qsidecar/internal/wiretext"
	"github.com/qsidecar/qsidecar/protocol"
)

var (
	workerColumns = []column{
		{title: "WORKER"}, {"PID", 7, true}, {"UID", 6, true}, {"AGE", 7, true}, {"LEASES", 6, true}, {"OLDEST", 7, true}, {"CLAIMS", 6, true}, {title: "QUEUES"},
	}
	databaseColumns = []column{
		{"DATABASE", 12, false}, {title: "SERVER"}, {"HEARTBEAT", 9, true}, {"POOL", 7, true}, {"LEASES", 7, true}, {title: "STATE"},
	}
)

func (m *model) workerRows() (rows []row) {
	if m.status == nil {
		return nil
	}
	filter := strings.ToLower(m.filter.Value())
	for _, s := range m.status.Sessions {
		queues := wiretext.Queues(&s)
		if !strings.Contains(strings.ToLower(s.Worker+" "+queues), filter) {
			continue
		}
		rows = append(rows, row{s.Session, []cell{
			plain(textfmt.OneLine(s.Worker, protocol.MaxWorkerName)), plain(wiretext.Optional(s.PID)), plain(wiretext.Optional(s.UID)), plain(wiretext.Age(s.AgeMS)),
			plain(strconv.FormatInt(s.Leases, 10)), plain(wiretext.Age(s.OldestLeaseMS)), plain(strconv.FormatInt(s.Waiting, 10)), plain(queues),
		}})
	}
	return rows
}

func (m *model) databaseRows() (rows []row) {
	if m.status == nil {
		return nil
	}
	for _, d := range m.status.Databases {
		state := plain(wiretext.DatabaseState(&d))
		switch {
		case d.Error != "":
			state = cell{state.text + ": " + textfmt.OneLine(d.Error, 200), badStyle}
		case state.text == "ok" && d.Cluster != "":
			state.text = "ok, " + textfmt.OneLine(d.Cluster, 200)
		case state.text != "ok":
			state.style = warnStyle
		}
		rows = append(rows, row{d.Name, []cell{
			plain(d.Name), plain(textfmt.OneLine(d.Engine+" "+d.Version, 100)), plain(wiretext.Age(max(d.HeartbeatAgeMS, 0))), plain(wiretext.Pool(&d)),
			plain(strconv.FormatInt(d.Leases, 10)), state,
		}})
	}
	return rows
}

// detailsText describes the worker or the database of detailsScreen.
func (m *model) detailsText() string {
	if m.status == nil {
		return ""
	}
	var b strings.Builder
	line := func(name, text string) {
		if text != "" && text != "-" {
			fmt.Fprintf(&b, "%-12s %s\n", name, text)
		}
	}
	if m.from == databasesScreen {
		for _, d := range m.status.Databases {
			if d.Name == m.details {
				databaseLines(&d, line)
				return b.String()
			}
		}
		return fmt.Sprintf("The database %s is not open any more.", m.details)
	}
	for _, s := range m.status.Sessions {
		if s.Session == m.details {
			workerLines(&s, line)
			return b.String()
		}
	}
	return "This worker has disconnected."
}

func databaseLines(d *protocol.DatabaseStatus, line func(name, text string)) {
	line("database", d.Name)
	line("server", textfmt.OneLine(d.Engine+" "+d.Version, 200))
	line("address", textfmt.OneLine(d.Address, 400))
	line("cluster", textfmt.OneLine(d.Cluster, 1000))
	line("heartbeat", wiretext.Age(max(d.HeartbeatAgeMS, 0)))
	line("pool", wiretext.Pool(d))
	line("leases", strconv.FormatInt(d.Leases, 10))
	line("state", wiretext.DatabaseState(d))
	line("error", textfmt.OneLine(d.Error, 4000))
	if d.ReplicaError != "" {
		line("replica", "statistics come from the primary: "+textfmt.OneLine(d.ReplicaError, 4000))
	}
	for _, o := range d.Obstacles {
		line("obstacle", "can't "+wiretext.Obstacle(&o))
	}
}

func workerLines(s *protocol.SessionStatus, line func(name, text string)) {
	line("worker", textfmt.OneLine(s.Worker, protocol.MaxWorkerName))
	line("connection", s.Session)
	line("socket", textfmt.OneLine(s.Socket, 200))
	line("pid", wiretext.Optional(s.PID))
	line("uid", wiretext.Optional(s.UID))
	line("connected", wiretext.Age(s.AgeMS))
	line("claims", fmt.Sprintf("%d waiting", s.Waiting))
	line("requests", fmt.Sprintf("%d without a reply", s.Open))
	line("leases", strconv.FormatInt(s.Leases, 10))
	for _, q := range s.Queues {
		name := "unknown queue"
		if q.Queue != "" {
			name = textfmt.OneLine(q.Queue, 255)
		}
		line("", fmt.Sprintf("%s: %d, the oldest is job %s for %s", name, q.Leases, textfmt.OneLine(q.OldestJob, protocol.MaxJobID), wiretext.Age(q.OldestLeaseMS)))
	}
}
