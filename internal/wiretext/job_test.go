package wiretext

import (
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/protocol"
)

// TestJobWithoutItsPayload checks that a payload that a reply left out is not shown as an empty one.
func TestJobWithoutItsPayload(t *testing.T) {
	v := protocol.JobView{ID: "1", Queue: "mail", LeftOut: protocol.Some[int64](9_000_000)}
	if text := Job(v); !strings.Contains(text, "\npayload      (9000000 bytes") {
		t.Errorf("the job is\n%s", text)
	}
	v.LeftOut, v.Payload = protocol.Opt[int64]{}, []byte("hello\x1b")
	if text := Job(v); !strings.HasSuffix(text, "\npayload      hello\ufffd") {
		t.Errorf("the job is\n%s", text)
	}
}

// TestSummary checks that one line of an error shows the error, and not where a trace begins.
func TestSummary(t *testing.T) {
	for message, want := range map[string]string{
		"":                              "",
		"no such user 17":               "no such user 17",
		"\nno such user\n  at line 3\n": "\nno such user\n  at line 3\n",
		"Traceback (most recent call last):\n  File \"mail.py\", line 4, in send\n    x()\nsmtplib.SMTPError: 421\ntry again":     "smtplib.SMTPError: 421",
		"exit status 1: Traceback (most recent call last):\n  File \"<string>\", line 1, in <module>\nRuntimeError: no such user": "exit status 1: RuntimeError: no such user",
		"Traceback (most recent call last):\n  File \"a.py\", line 1\nKeyError: 'a'\n\nDuring handling of the above exception, another exception occurred:\n\n" +
			"Traceback (most recent call last):\n  File \"a.py\", line 2\nValueError: b": "ValueError: b",
		"Traceback (most recent call last):":                                                  "Traceback (most recent call last):",
		"Traceback (most recent call last):\n  File":                                          "Traceback (most recent call last):\n  File",
		"exit status 1: /srv/job.js:3\nthrow new Error('x')\n      ^\n\nError: x\n    at run": "exit status 1: Error: x",
		"/srv/job.js:3\nx\n^":                                                                 "/srv/job.js:3\nx\n^",
	} {
		if got := Summary(message); got != want {
			t.Errorf("%q:\n%q, want\n%q", message, got, want)
		}
	}
}
