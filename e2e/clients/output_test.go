package clients

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/clientlib"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestOutputOfJobsIsVisible checks that a line that a job prints is in the worker's output while the job still runs,
// although that is a file.
func TestOutputOfJobsIsVisible(t *testing.T) {
	t.Parallel()
	gems, bin := clientlib.RubyGem(t)
	buffered := []string{"PYTHONUNBUFFERED="} // empty: as if it weren't set
	python := []string{clientlib.PythonEnv(t, clientlib.PythonPackage), "-m", "qsidecar", "work", "jobs:app", "-j", "2"}
	ruby := []string{"ruby", filepath.Join(bin, "qsidecar-work"), "-c", "2", "jobs.rb"}
	files := map[string]string{
		"jobs.js": "const { promises } = require('node:fs')\nconst { Worker } = require(process.env.QSIDECAR_PACKAGE)\n" +
			"module.exports = new Worker({loud: async () => { console.log('a line'); await (await promises.open(process.env.WORKER_GATE)).close() }})\n",
		"jobs.py": "import os, qsidecar\napp = qsidecar.App()\n@app.job('loud')\ndef loud(job):\n    print('a line')\n    open(os.environ['WORKER_GATE']).close()\n",
		"jobs.rb": "worker = Qsidecar::Worker.new\nworker.job(\"loud\") { puts \"a line\"; File.open(ENV.fetch(\"WORKER_GATE\")).close }\n",
	}
	for name, c := range map[string]struct{ env, argv []string }{
		"work":             {nil, []string{kit.Binary, "work", "loud", "--", "sh", "-c", `echo a line; : <"$WORKER_GATE"`}},
		"python":           {buffered, python},
		"python processes": {buffered, append(slices.Clip(python), "--processes")},
		"ruby":             {gems, ruby},
		"ruby processes":   {gems, append(slices.Clip(ruby), "-p", "2")},
		"node":             {[]string{"QSIDECAR_PACKAGE=" + clientlib.NodePackage}, clientlib.NodeProgram(t, "work", "jobs.js", "-j", "2")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := clientlib.NewWorker(t, kit.NewSite(t).Start("a"), c.env, c.argv...)
			w.Dir = t.TempDir()
			for name, text := range files {
				if err := os.WriteFile(filepath.Join(w.Dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			w.Sidecar.Dial().Enqueue("loud", 1)
			w.Start()
			testwait.Until(t, "the line is visible", func() bool { return strings.Contains(w.Output.String(), "a line\n") })
			w.OpenGate()
			w.WaitEmpty("loud")
			w.Terminate()
		})
	}
}
