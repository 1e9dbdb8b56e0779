package web

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/protocol"
)

// control is the config of the sidecar of a test.
type control struct{}

func (control) Reload(context.Context) ([]string, string, error) { return nil, "no reason", nil }
func (control) Config() (int64, error, time.Time)                { return 2, nil, time.Time{} }
func (control) Admin() string                                    { return "" }
func (control) Page() string                                     { return "" }
func (control) Report(_ context.Context, op protocol.Op) (*protocol.Reply, error) {
	if op == protocol.OpCheck {
		return &protocol.Reply{Findings: []protocol.Finding{
			{Database: "main", Severity: "info", Topic: "server", Text: "SQLite <3>"}, {Severity: "error", Topic: "socket", Text: "no right", Fix: "use another path"},
		}}, nil
	}
	return &protocol.Reply{Config: &protocol.Config{
		Settings: []string{"log.level: <info>"},
		Reloads: []protocol.Reload{
			{At: 3, Generation: 2, Changes: []string{}, Error: "line 3: <b>wrong</b>"},
			{At: 2, Generation: 2, Changes: []string{"log.level: warn → info"}}, {At: 1, Generation: 1, Changes: []string{"started"}},
		},
	}}, nil
}

// TestConfigPage checks the settings and the history, and that live updates don't read them.
func TestConfigPage(t *testing.T) {
	s := newSite(t, control{})
	d := s.get("/config", http.StatusOK)
	s.contains("the page", d.text("main"), "log.level: <info>", "Rejected; generation 2 stays", "line 3: <b>wrong</b>", "log.level: warn → info", "Generation 1")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/config", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(liveHeader, "1")
	resp, err := s.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if live := s.read(resp, http.StatusOK); strings.Contains(live.text("main"), "log.level") {
		t.Error("a live update reads the settings")
	}
	if n := s.count[protocol.OpConfig].Load(); n != 1 {
		t.Errorf("the config was read %d times", n)
	}
}

// TestCheckPage checks that a check runs only on request, and shows errors first with their fixes.
func TestCheckPage(t *testing.T) {
	s := newSite(t, control{})
	if rows := s.get("/check", http.StatusOK).rows(); len(rows) != 0 || s.count[protocol.OpCheck].Load() != 0 {
		t.Errorf("a check ran without a request: %q", rows)
	}
	rows := s.get("/check?run=1", http.StatusOK).rows()
	if len(rows) != 2 || rows[0] != "error host socket no right→ use another path" || rows[1] != "info main server SQLite <3>" {
		t.Errorf("the findings are %q", rows)
	}
	s = newSite(t)
	s.contains("a sidecar without a config", s.get("/check?run=1", http.StatusOK).text("main"), "The check didn't run.")
}
