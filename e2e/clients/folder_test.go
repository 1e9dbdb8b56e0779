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

// TestDeletedFolder checks that a worker whose working folder is deleted, as that of an old release is, ends with a
// message. No attempt of the remaining jobs counts, also not of the job that fails because of it.
func TestDeletedFolder(t *testing.T) {
	t.Parallel()
	gems, bin := clientlib.RubyGem(t)
	work := []string{kit.Binary, "work", "folder", "--"}
	python := []string{clientlib.PythonEnv(t, clientlib.PythonPackage), "-m", "qsidecar", "work", "jobs:app", "-j", "1"}
	ruby := []string{"ruby", filepath.Join(bin, "qsidecar-work"), "-c", "1"}
	goWorker := clientlib.GoWorker(t, kit.NewSite(t).Start("a"))
	node := clientlib.NodeProgram(t, "work", "jobs.js", "-j", "1")
	files := map[string]string{
		"job.sh":     "cd /; rm -r -- \"$OLDPWD\"; exit \"$(cat)\"",
		"persist.sh": "while read -r job; do cd /; rm -r -- \"$OLDPWD\"; id=${job#*'\"id\":\"'}; op=ack; case \"$job\" in *'\"payload\":\"1\"'*) op=nack;; esac\necho '{\"op\":\"'$op'\",\"id\":\"'\"${id%%'\"'*}\"'\"}'; done",
		"jobs.py": "import os, shutil, qsidecar\napp = qsidecar.App()\n@app.job(\"folder\")\ndef work(job):\n" +
			"    shutil.rmtree(os.getcwd())\n    if job.payload == 1:\n        import late\n",
		"jobs.rb": "require \"fileutils\"\nworker = Qsidecar::Worker.new\nworker.job(\"folder\") do |job|\n" +
			"  begin\n    Dir.mkdir(ENV.fetch(\"WORKER_GATE\") + \".taken\")\n  rescue Errno::EEXIST\n" + // by the other process
			"    Thread.pass while (Dir.pwd rescue nil)\n    raise \"the folder is gone\"\n  end\n" +
			"  FileUtils.rm_r(Dir.pwd)\n  require_relative \"late\" if job.payload == 1\nend\n",
		"jobs.js": "const fs = require('node:fs')\nconst { Worker } = require(process.env.QSIDECAR_PACKAGE)\n" +
			"module.exports = new Worker({folder: (job) => {\n  fs.rmSync(process.cwd(), {recursive: true})\n" +
			"  if (job.payload === 1) require('./late.js')\n}})\n",
		"late.py": "", "late.rb": "", "late.js": "",
	}
	for name, c := range map[string]struct{ env, argv []string }{
		"qsidecar work":            {nil, append(slices.Clip(work), "sh", "job.sh")},
		"qsidecar work persistent": {nil, []string{kit.Binary, "work", "folder", "--persistent", "--", "sh", "persist.sh"}},
		"go":                       {append(goWorker.Env, "WORKER_QUEUES=folder"), goWorker.Argv},
		"node":                     {[]string{"QSIDECAR_PACKAGE=" + clientlib.NodePackage}, node},
		"node with threads":        {[]string{"QSIDECAR_PACKAGE=" + clientlib.NodePackage}, append(slices.Clip(node), "--threads", "1")},
		"python":                   {nil, python},
		"python with processes":    {nil, append(slices.Clip(python), "--processes")},
		"ruby":                     {gems, append(slices.Clip(ruby), "jobs.rb")},
		"ruby with processes":      {gems, append(slices.Clip(ruby), "-p", "2", "jobs.rb")},
	} {
		for payload, left := range map[string]int{"0": 19, "1": 20} {
			if name == "go" && payload == "0" {
				continue // a compiled program goes on until a job fails
			}
			t.Run(name+", exit "+payload, func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				for name, text := range files {
					if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				w := clientlib.NewWorker(t, kit.NewSite(t).Start("a"), c.env, c.argv...)
				client := w.Sidecar.Dial()
				for range 20 {
					client.Must(kit.Msg{"op": "enqueue", "queue": "folder", "payload": payload, "max_attempts": 1})
				}
				w.Dir = dir
				w.Start()
				testwait.Until(t, "the worker ends", w.Exited)
				if code, out := w.Cmd.ProcessState.ExitCode(), w.Output.String(); code != 1 || !strings.Contains(out, "the working folder "+dir+" was deleted") {
					t.Errorf("it ends with %d and prints %q", code, out)
				}
				if got := w.Counts("folder").Total(); got != left {
					t.Errorf("%d jobs are left, want %d; output:\n%s", got, left, w.Output)
				}
				var jobs []kit.Job
				testwait.Until(t, "no job is dead", func() bool { // a prefetched job is ready a moment later
					jobs = append(jobs, client.Must(kit.Msg{"op": "claim", "queue": "folder", "max": 100}).Jobs...)
					return len(jobs) == left
				})
				for _, j := range jobs {
					if j.Attempt != 1 {
						t.Errorf("job %s had its attempt %d, want 1", j.ID, j.Attempt)
					}
				}
			})
		}
	}
}
