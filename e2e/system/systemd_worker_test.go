package system

import (
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/internal/testwait"
)

// unitWorker runs the example of a worker during a restart of the sidecar.
func unitWorker(t *testing.T, s *service) {
	s.config("drain_timeout: 300ms\n")
	s.write("/usr/local/lib/qsidecar/mail", "#!/bin/sh\ncat >/run/worked/$QSIDECAR_JOB; env >/run/worked/env; while test -e /run/worked/wait; do sleep 0.05; done\n")
	s.do("chmod 755 /usr/local/lib/qsidecar/mail; mkdir -m 1777 /run/worked; touch /run/worked/wait")
	s.write("/etc/systemd/system/qsidecar-work@mail.service.d/here.conf", "[Service]\nReadWritePaths=/run/worked\nEnvironment=\"WORK_OPTIONS=-j 2 --timeout 5m\"\n")
	s.do("systemctl daemon-reload; systemctl start qsidecar-work@mail.service")
	client := s.dial()
	ids := client.Enqueue("mail", 2)
	testwait.Until(t, "both jobs are worked", func() bool {
		_, err := s.try("test -s /run/worked/" + ids[0] + " && test -s /run/worked/" + ids[1])
		return err == nil
	})
	s.do("systemctl restart %s", unit)
	s.do("rm /run/worked/wait")
	client = s.dial()
	testwait.Until(t, "both jobs are settled", func() bool { return client.Stats("mail").Total() == 0 })
	if env := s.do("cat /run/worked/env"); !strings.Contains(env, "QSIDECAR_SOCKET="+unitSocket) || strings.Contains(env, "NOTIFY_SOCKET=") {
		t.Errorf("the command's environment:\n%s", env)
	}
	s.do("systemctl stop qsidecar-work@mail.service")
	if got := s.property("qsidecar-work@mail.service", "Result"); got != "success" {
		t.Errorf("the worker's result is %s", got)
	}
}
