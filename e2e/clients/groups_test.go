package clients

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/clientlib"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestDrainedGroup checks that a worker of each language that drains a queue works off a group, one job at a time and in order,
// although each job is ready only after the ack of the one before.
func TestDrainedGroup(t *testing.T) {
	t.Parallel()
	const jobs = 30
	files := map[string]string{
		"jobs.js": "const { appendFileSync } = require('node:fs')\nconst { Worker } = require(process.env.QSIDECAR_PACKAGE)\n" +
			"const note = (line) => appendFileSync(process.env.WORKER_LOG, line + '\\n')\n" +
			"module.exports = new Worker({ q: async (job) => { note(`begin ${job.payload}`); await null; note(`end ${job.payload}`) } })\n",
		"jobs.py": "import os, qsidecar\napp = qsidecar.App()\n@app.job('q')\ndef work(job):\n    for what in ('begin', 'end'):\n" +
			"        with open(os.environ['WORKER_LOG'], 'a') as f:\n            print(what, job.payload, file=f)\n",
		"jobs.rb": "worker = Qsidecar::Worker.new\nworker.job('q') { |job| %w[begin end].each { |what| File.write(ENV.fetch('WORKER_LOG'), \"#{what} #{job.payload}\\n\", mode: 'a') } }\n",
	}
	gems, bin := clientlib.RubyGem(t)
	server := newestPostgres(t)
	var want []string
	for i := range jobs {
		want = append(want, fmt.Sprint("begin ", i), fmt.Sprint("end ", i))
	}
	for name, c := range map[string]struct{ env, argv []string }{
		"qsidecar work": {nil, []string{kit.Binary, "work", "q", "-j", "4", "--drain", "--ack", "ACK", "--", "sh", "-c", `n=$(cat); for what in begin end; do echo "$what $n" >>"$WORKER_LOG"; done`}},
		"python":        {nil, []string{clientlib.PythonEnv(t, clientlib.PythonPackage), "-m", "qsidecar", "work", "jobs:app", "-j", "4", "--drain", "--ack", "ACK"}},
		"ruby":          {gems, []string{"ruby", filepath.Join(bin, "qsidecar-work"), "-c", "4", "--drain", "--ack", "ACK", "jobs.rb"}},
		"node":          {[]string{"QSIDECAR_PACKAGE=" + clientlib.NodePackage}, clientlib.NodeProgram(t, "work", "jobs.js", "-j", "4", "--drain", "--ack", "ACK")},
	} {
		for _, ack := range []string{"behind", "sync"} {
			t.Run(name+" "+ack, func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				for name, text := range files {
					if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				argv := slices.Clone(c.argv)
				argv[slices.Index(argv, "ACK")] = ack
				s := kit.NewSite(t)
				s.URL = server.Database(t)
				w := clientlib.NewWorker(t, s.Start("a"), c.env, argv...)
				conn := w.Sidecar.Dial()
				for i := range jobs {
					conn.Must(kit.Msg{"op": "enqueue", "queue": "q", "payload": strconv.Itoa(i), "group": "g"})
				}
				w.Dir = dir
				w.Start()
				testwait.Until(t, "the worker ends", w.Exited)
				if _, lines := w.Done(); !slices.Equal(lines, want) {
					t.Errorf("the worker did %d of %d jobs, and in this order: %q", len(lines)/2, jobs, lines)
				}
			})
		}
	}
}
