package deploy

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestPods runs the pods of all manifests on one PostgreSQL.
func TestPods(t *testing.T) {
	t.Parallel()
	m := decodeManifests(t)
	config := m.configs["qsidecar"].Data
	db := startPostgres(t, "postgres", "app_sidecar", "app")
	secret := m.secrets["qsidecar"].StringData
	secret["password"] = password + "\n"
	images := map[string]*image{imageName: theImage(t), "example/app:1.0.0": theApp(t)}
	at := address() // the address of this pod
	listen := "listen: 0.0.0.0:9464"
	if !strings.Contains(config["config.yaml"], listen) {
		t.Fatalf("the config does not say %s", listen)
	}
	config["config.yaml"] = strings.Replace(config["config.yaml"], listen, "listen: "+at+":9464", 1)

	newPod := func(name string) *pod {
		return newPod(t, m.pods[name], m, images, map[string]string{db.name: db.at})
	}
	refusedPod(t, newPod("app"))
	applicationPod(t, newPod("app"), db, at)
	jobPod(t, newPod("reports"), newPod("nightly"))
	ranAsRoot(t, "pods", "the manifests' Deployment, Job and CronJob run by bwrap on PostgreSQL "+db.Version+", which went away and came back")
}

// refusedPod checks that a socket directly in the volume, which every container can write, is an
// error that names the fix.
func refusedPod(t *testing.T, p *pod) {
	t.Helper()
	c := *p.spec.InitContainers[0].DeepCopy()
	c.Env[0].Value = "/run/qsidecar/qsidecar.sock"
	if code, out := p.container(c).run(t); code != 1 || !strings.Contains(out, "give the socket a folder of its own") {
		t.Errorf("with %s=%s it ended with %d: %s", c.Env[0].Name, c.Env[0].Value, code, out)
	}
}

// applicationPod checks an outage of the database, during which no probe fails and the application
// is not affected, and the pod's end in the order of a native sidecar.
func applicationPod(t *testing.T, p *pod, db *postgres, at string) {
	t.Helper()
	sidecar, app, line := p.start()
	enqueue := func(payload string) (int, string) { return sidecar.exec("qsidecar", "enqueue", "mail", payload) }
	if code, out := enqueue("one"); code != 0 {
		t.Fatalf("enqueue: %d, %s", code, out)
	}
	testwait.Until(t, "the application has its job", func() bool { return strings.Contains(app.out.String(), "working on: one") })
	for path, want := range map[string]int{"/healthz": 200, "/startupz": 200, "/readyz": 200} {
		if code, said := get(t, at, path); code != want {
			t.Errorf("%s: %d, %s", path, code, said)
		}
	}
	if _, said := get(t, at, "/metrics"); !strings.Contains(said, "\nprocess_open_fds ") {
		t.Errorf("/metrics:\n%s", said)
	}

	if err := db.Halt(); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "/readyz fails", func() bool { code, _ := get(t, at, "/readyz"); return code == 503 })
	for _, path := range []string{"/healthz", "/startupz"} {
		if code, said := get(t, at, path); code != 200 {
			t.Errorf("without the database %s: %d, %s", path, code, said)
		}
	}
	for _, probe := range []error{p.probe(sidecar, p.spec.InitContainers[0].StartupProbe), p.probe(sidecar, p.spec.InitContainers[0].LivenessProbe)} {
		if probe != nil {
			t.Errorf("without the database a probe: %v", probe)
		}
	}
	if code, out := sidecar.exec("qsidecar", "status"); code != 0 || app.gone() || sidecar.gone() {
		t.Errorf("without the database: status %d, %s; the application's end %v, the sidecar's %v", code, out, app.gone(), sidecar.gone())
	}
	if err := db.Restart(context.Background()); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "/readyz is well again", func() bool { code, _ := get(t, at, "/readyz"); return code == 200 })

	line()
	if code := app.wait(); code != 0 || !strings.Contains(app.out.String(), "acked") {
		t.Errorf("the application ended with %d: %s", code, app.out.String())
	}
	if sidecar.gone() {
		t.Error("the sidecar ended with the application")
	}
	changeConfig(t, p, sidecar)
	sidecar.signal(syscall.SIGTERM)
	if code := sidecar.wait(); code != 0 {
		t.Errorf("the sidecar ended with %d", code)
	}
}

// changeConfig replaces the ConfigMap's volume, and waits until the sidecar has reloaded.
func changeConfig(t *testing.T, p *pod, sidecar *process) {
	t.Helper()
	text := p.objects.configs["qsidecar"].Data["config.yaml"]
	changed := strings.Replace(text, "\"*\": {}", "only-this-one: {}", 1)
	if changed == text {
		t.Fatal("the config has no queue *")
	}
	p.publish("config", map[string]string{"config.yaml": changed}, 0o644)
	testwait.Until(t, "the changed ConfigMap is taken", func() bool {
		code, out := sidecar.exec("qsidecar", "enqueue", "mail", "x")
		return code == 1 && strings.Contains(out, "unknown_queue")
	})
}

// jobPod checks that the CronJob's pod enqueues one job for all its tries, and that the Job's pod
// processes it and completes while its sidecar runs.
func jobPod(t *testing.T, job, nightly *pod) {
	t.Helper()
	nightly.labels = map[string]string{"batch.kubernetes.io/job-name": "nightly-1"}
	sidecar, enqueue, _ := nightly.start()
	if code := enqueue.wait(); code != 0 {
		t.Fatalf("the CronJob's container ended with %d: %s", code, enqueue.out.String())
	}
	if again := nightly.container(nightly.spec.Containers[0]).start(t); again.wait() != 0 {
		t.Errorf("tried again: %s", again.out.String())
	}
	sidecar.signal(syscall.SIGTERM)
	if code := sidecar.wait(); code != 0 {
		t.Errorf("the CronJob's sidecar ended with %d", code)
	}

	sidecar, worker, line := job.start()
	testwait.Until(t, "the Job's worker has the job", func() bool { return strings.Contains(worker.out.String(), "working on: nightly") })
	code, out := sidecar.exec("qsidecar", "stats", "reports", "--json")
	var stats struct{ Ready, Claimed int }
	if err := json.Unmarshal([]byte(out), &stats); code != 0 || err != nil || stats.Ready != 0 || stats.Claimed != 1 {
		t.Errorf("stats: %d, %v, %s", code, err, out)
	}
	line()
	if code := worker.wait(); code != 0 {
		t.Errorf("the Job's worker ended with %d: %s", code, worker.out.String())
	}
	if sidecar.gone() {
		t.Error("the sidecar ended with the Job's container")
	}
	if err := job.probe(sidecar, job.spec.InitContainers[0].LivenessProbe); err != nil {
		t.Errorf("after the Job's container: %v", err)
	}
	sidecar.signal(syscall.SIGTERM)
	if code := sidecar.wait(); code != 0 {
		t.Errorf("the Job's sidecar ended with %d", code)
	}
}

// get requests a page of the pod's metrics port.
func get(t *testing.T, at, path string) (code int, said string) {
	t.Helper()
	r, err := http.Get("http://" + net.JoinHostPort(at, "9464") + path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(text)
}
