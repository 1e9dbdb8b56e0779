package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestConfigFileIsFound checks which config file each command reads: that of --config, of
// QSIDECAR_CONFIG or of the host, or none.
func TestConfigFileIsFound(t *testing.T) {
	h := newHost(t)
	config := func(name, queue string) string {
		t.Helper()
		return h.file(name, "databases: {main: {url: 'sqlite:"+filepath.Join(h.dir, name+".db")+"'}}\nqueues: {"+queue+": {}}\n")
	}
	if err := os.Mkdir(filepath.Dir(h.systemFile()), 0o700); err != nil {
		t.Fatal(err)
	}
	none := func() {
		t.Helper()
		h.run("check").wantStdout(t, 0, filepath.Join("state", "qsidecar", "qsidecar.db"), "queues: * (any other name)")
		h.run("adopt", "things").wantStderr(t, exitUsage, "which database?")
	}
	none()
	found := func(file, queue string, args ...string) {
		t.Helper()
		h.run(append([]string{"check"}, args...)...).wantStdout(t, 0, "config "+file+": ok", file+".db", "queues: "+queue+"\n")
		h.run(append([]string{"migrate"}, args...)...).wantStdout(t, 0, "main: the tables in", file+".db")
		r := h.serve(args...)
		r.waitForOutput(file + ".db, config " + file + "\n")
		if code := r.stop(); code != 0 {
			t.Errorf("serve %v ended with %d: %s", args, code, r.errOut)
		}
		h.run(append([]string{"adopt", "qsidecar_jobs"}, args...)...).wantStdout(t, 0, file+".db")
		if r := h.runWith(`{"op":"enqueue","queue":"`+queue+`"}`+"\n", append([]string{"stdio"}, args...)...); !strings.Contains(r.out, `"ok":true`) {
			t.Errorf("stdio %v: %+v", args, r)
		}
	}
	system := config("etc/config.yaml", "of-host")
	found(system, "of-host")
	h.env["QSIDECAR_CONFIG"] = config("variable.yaml", "of-variable")
	found(h.env["QSIDECAR_CONFIG"], "of-variable")
	flag := config("flag.yaml", "of-flag")
	found(flag, "of-flag", "--config", flag)
	h.run("check", "--config", "none").wantStdout(t, 0, filepath.Join("state", "qsidecar", "qsidecar.db"))

	h.env["QSIDECAR_CONFIG"] = "none"
	none()
	h.env["QSIDECAR_CONFIG"] = filepath.Join(h.dir, "missing.yaml")
	h.run("serve").wantStderr(t, exitUsage, "the config file cannot be read", "missing.yaml")
	delete(h.env, "QSIDECAR_CONFIG")
	h.run("serve", "--database", "sqlite:x").wantStderr(t, exitUsage, system, "--config none")
	h.run("adopt", "things", "--database", "sqlite:"+filepath.Join(h.dir, "no.db")).wantStderr(t, exitFailure, "no.db")

	asUnprivileged(t, func() {
		h.run("check").wantStderr(t, exitUsage, "the config file cannot be read", "permission denied")
	})
}

// TestAdoptOneOfSeveralDatabases checks that adopt does not guess the database.
func TestAdoptOneOfSeveralDatabases(t *testing.T) {
	h := newHost(t)
	file := h.file("c.yaml", "databases: {a: {url: 'sqlite:"+h.dir+"/a.db'}, b: {url: 'sqlite:"+h.dir+"/b.db'}}\ndefaults: {database: a}\n")
	h.run("adopt", "things", "--config", file).wantStderr(t, exitUsage, file+" has several databases (a, b)", "--database")
}
