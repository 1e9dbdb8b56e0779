package config

import (
	"strings"
	"testing"
)

// TestReplicaURL checks which replicas a config can name.
func TestReplicaURL(t *testing.T) {
	for text, want := range map[string]string{
		"databases: {main: {url: 'postgres://a@db/a', replica_url: 'postgres://a@db2/a'}}":                          "",
		"databases: {main: {url: 'mysql://a@db/a', replica_url: 'mysql://a@db2/a'}}":                                "",
		"databases: {main: {url: 'postgres://a@db/a', replica_url: 'mysql://a@db2/a'}}":                             "databases.main.replica_url: a database of postgres can't have a replica of mysql",
		"databases: {main: {url: 'sqlite:a.db', replica_url: 'sqlite:b.db'}}":                                       "databases.main.replica_url: statistics of sqlite come from the database itself",
		"databases: {main: {url: 'sqlserver://a@db?database=a', replica_url: 'sqlserver://a@db2?database=a'}}":      "databases.main.replica_url: statistics of sqlserver come from the database itself",
		"databases: {main: {url: 'postgres://a@db/a', replica_url: 'db2'}}":                                         "databases.main.replica_url: a database is written",
		"databases: {main: {url: 'postgres://a@db/a', replica_url: 'postgres://a@db2/a'}}\nqueues: {q: {table: t}}": "queues.q is in an adopted table",
	} {
		_, err := Parse("c.yaml", []byte(text), noEnv)
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", text, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// TestChangedReplicaURL checks that a reload opens the database again for another replica, and doesn't log its password.
func TestChangedReplicaURL(t *testing.T) {
	config := func(replica string) Config {
		c, err := Parse("c.yaml", []byte("databases: {main: {url: 'postgres://a@db/a', replica_url: '"+replica+"'}}"), noEnv)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	before, after := config("postgres://a:hunter2@db2/a"), config("postgres://a:hunter2@db3/a")
	if all := Changes(before, after); len(all) != 1 || all[0] != "databases.main.replica_url changed" {
		t.Errorf("the changes are %q", all)
	}
	one, err := before.OpenKey("main")
	if err != nil {
		t.Fatal(err)
	}
	if other, err := after.OpenKey("main"); err != nil || one == other {
		t.Errorf("the database stays open: %v", err)
	}
}
