package check

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/config"
)

// TestDatabases checks that each database has a result in the order of the names, and that
// examining an absent file doesn't create it.
func TestDatabases(t *testing.T) {
	file := filepath.Join(t.TempDir(), "q.db")
	c := config.Default(filepath.Join(t.TempDir(), "s"), "sqlite:"+file)
	c.Databases["broken"] = config.Database{URL: "nothing"}
	all := Databases(t.Context(), &c, slog.New(slog.DiscardHandler))
	if len(all) != 2 || all[0].Name != "broken" || all[1].Name != "main" {
		t.Fatalf("%+v", all)
	}
	if err := all[0].ConfigErr; err == nil || !strings.HasPrefix(err.Error(), "databases.broken: ") {
		t.Errorf("of the broken one: %v", err)
	}
	if r := all[1]; r.ConfigErr != nil || r.Count(backends.SeverityError) > 0 {
		t.Errorf("of the other one: %+v", r)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("the file was created")
	}
}

// TestBridge checks that options which the bridge rejects are an error.
func TestBridge(t *testing.T) {
	c := config.Default(filepath.Join(t.TempDir(), "s"), "sqlite:q.db")
	all := []Result{{Name: "main"}}
	if err := Bridge(&c, all); err != nil {
		t.Error(err)
	}
	twin := []Result{{Name: "main", Info: backends.Info{Database: "one"}}, {Name: "twin", Info: backends.Info{Database: "one"}}}
	c.Databases["twin"] = c.Databases["main"]
	if err := Bridge(&c, twin); err == nil {
		t.Error("one database under two names is accepted")
	}
}

// TestHost checks the findings about the path of a socket, and about a public listener.
func TestHost(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c := config.Default(file, "sqlite:q.db")
	c.Admin.Listen = "0.0.0.0:9464"
	found := Result{Findings: Host(&c)}
	if found.Count(backends.SeverityError) != 1 || found.Count(backends.SeverityWarning) != 1 {
		t.Errorf("%+v", found.Findings)
	}
	c.Admin.TokenFile = file // it is empty
	if found := (Result{Findings: Host(&c)}); found.Count(backends.SeverityError) != 2 {
		t.Errorf("with an empty token_file: %+v", found.Findings)
	}
}

// TestUselessQueues checks that a name in an allow rule that no queue has is a warning, unless
// clients can create queues.
func TestUselessQueues(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	for queues, want := range map[string]string{
		"{mail: {}, report: {}}": `listen[0].allow[1]: the config has no queue "mial", so the rule allows nothing for it`,
		`{mail: {}, "*": {}}`:    "",
	} {
		text := "listen:\n  - socket: " + file + ".sock\n    allow: [{ops: [claim]}, {ops: [enqueue], queues: [mial, \"re*\", mail]}]\nqueues: " + queues
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := config.Input{File: file, Database: "sqlite:q.db", Env: func(string) (string, bool) { return "", false }}.Load()
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, f := range Host(&c) {
			got += f.Text
		}
		if got != want {
			t.Errorf("%s: %q, want %q", queues, got, want)
		}
	}
}

// TestUselessAccounts checks that an id which stands for the users of other user namespaces is a warning.
func TestUselessAccounts(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte("listen: [{socket: "+file+".sock, allow: [{users: [7, 65534]}, {groups: [65533, 9]}]}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Input{File: file, Database: "sqlite:q.db", Env: func(string) (string, bool) { return "", false }}.Load()
	if err != nil {
		t.Fatal(err)
	}
	isOverflow := func(id uint32, group bool) bool { return id == 65534 && !group || id == 65533 && group }
	got := ""
	for _, f := range uselessAccounts(&c, isOverflow) {
		got += f.Text + "\n"
	}
	want := "listen[0].allow[0]: user 65534 stands for all of other user namespaces here, so the rule applies to no client by it\n" +
		"listen[0].allow[1]: group 65533 stands for all of other user namespaces here, so the rule applies to no client by it\n"
	if got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
