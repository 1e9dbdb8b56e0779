package clients

import (
	"errors"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
)

// TestWrongArgumentsOfWorkers checks that clients report wrong arguments by what is right, and not by an error of their own code.
func TestWrongArgumentsOfWorkers(t *testing.T) {
	t.Parallel()
	dir := kit.NewSite(t).Dir
	for _, folder := range []string{"node", "python", "ruby"} {
		command(t, "cp", "-R", kit.Path("clients/"+folder), dir)
	}
	languages := map[string]func(code string) []string{
		"python": func(code string) []string {
			return []string{"python3", "-c", "import sys; sys.path.insert(0, 'python'); import qsidecar\na = qsidecar.App()\nc = qsidecar.Client()\na.job('q')(print)\n" + code}
		},
		"ruby": func(code string) []string {
			return []string{"ruby", "-Iruby/lib", "-rqsidecar", "-e", "w = Qsidecar::Worker.new; w.job('q') {}; c = Qsidecar::Client.new; " + code}
		},
		"node": func(code string) []string {
			return []string{"node", "-e", "const { Client, Worker } = require('./node'); " + code}
		},
	}
	const badName = `"a b" is not a queue name: use A-Z a-z 0-9 . _ : / - and do not start with . or -`
	for _, row := range []struct{ language, code, want string }{
		{"python", "a.run(concurrency='8')", "TypeError: concurrency is '8', must be a whole number"},
		{"python", "a.run(queues={'q': '8'})", "TypeError: q is '8', must be a whole number"},
		{"python", "a.run(queues='q')", "TypeError: queues is 'q', must be a dict such as {'mail': 8}, or {'mail': None} for one that shares concurrency"},
		{"python", "a.run(queues=['q'])", "TypeError: queues is ['q'], must be a dict such as"},
		{"python", "a.job('a b')", "ValueError: " + badName},
		{"python", "c.enqueue_many(qsidecar.NewJob('q', 1))", "TypeError: pass a list of jobs, as in [NewJob(queue, payload)], not one job"},
		{"python", "c.enqueue('q', 1, run_at=1796000000000)", "ValueError: run_at=1796000000000: must be seconds since 1970, and this is probably milliseconds"},
		{"ruby", "w.run(concurrency: '8')", "concurrency is 1 to 256"},
		{"ruby", "w.run(queues: 'q')", `queues is "q", must be a Hash such as { "mail" => 8 }, or { "mail" => nil } for one that shares concurrency`},
		{"ruby", "w.run(queues: ['q'])", `queues is ["q"], must be a Hash such as`},
		{"ruby", "w.run(processes: '4')", `processes is "4", must be a whole number from 1 on`},
		{"ruby", "w.job('a b') {}", badName},
		{"ruby", "c.enqueue('q', 1, run_at: 1796000000000)", "run_at: 1796000000000 must be seconds since 1970, and this is probably milliseconds"},
		{"node", "new Worker({ 'a b': () => {} })", "TypeError: Worker: " + badName},
	} {
		out, err := clientCommand(t, dir, languages[row.language](row.code), []string{"QSIDECAR_SOCKET=" + dir + "/none.sock"}, nil).CombinedOutput()
		if err == nil || !strings.Contains(string(out), row.want) {
			t.Errorf("%s: %s: %v\n%s\nwant %s", row.language, row.code, err, out, row.want)
		}
	}
}

// TestWrongOptionsOfWorkers checks what the programs of workers report about the options of another one's, and about several queues in one.
func TestWrongOptionsOfWorkers(t *testing.T) {
	t.Parallel()
	dir := kit.NewSite(t).Dir
	for _, folder := range []string{"node", "python", "ruby"} {
		command(t, "cp", "-R", kit.Path("clients/"+folder), dir)
	}
	python := []string{"env", "PYTHONPATH=python", "python3", "-m", "qsidecar", "work", "json:loads"}
	ruby := []string{"ruby", "-Iruby/lib", "ruby/exe/qsidecar-work"}
	node := []string{"node", "node/bin/qsidecar-node.js", "work"}
	for _, row := range []struct {
		program []string
		args    []string
		want    string
	}{
		{python, []string{"-c", "8"}, "unrecognized arguments: -c 8: did you mean -j (--concurrency)?"},
		{python, []string{"--frobnicate"}, "unrecognized arguments: --frobnicate\n"},
		{python, []string{"--queue", "mail,sms"}, "'mail,sms': name each queue with a --queue of its own"},
		{ruby, []string{"-j", "8", "x.rb"}, "invalid option: -j: did you mean -c (--concurrency)?"},
		{ruby, []string{"--frobnicate", "x.rb"}, "invalid option: --frobnicate\n"},
		{ruby, []string{"--queue", "mail,sms", "x.rb"}, "mail,sms: name each queue with a --queue of its own"},
		{ruby, []string{"ruby"}, "ruby is a folder: name a file in it"},
		{node, []string{"x.mjs", "--jobs", "8"}, "there is no option --jobs: did you mean -j (--concurrency)?"},
		{node, []string{"x.mjs", "--frobnicate"}, "there is no option --frobnicate: qsidecar-node --help lists the options"},
		{node, []string{"x.mjs", "--queue", "mail,sms"}, "--queue is mail,sms: name each queue with a --queue of its own"},
		{node, []string{"node"}, "node is a folder: name a file in it"},
	} {
		out, err := clientCommand(t, dir, append(slices.Clip(row.program), row.args...), nil, nil).CombinedOutput()
		if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 2 || !strings.Contains(string(out), row.want) {
			t.Errorf("%s: %v\n%s\nwant 2 and %s", append(row.program, row.args...), err, out, row.want)
		}
	}
}
