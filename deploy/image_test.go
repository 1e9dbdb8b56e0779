package deploy

import (
	"crypto/x509"
	"debug/elf"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestImage checks that the image contains what the docs list and nothing else, and that a second
// build gives the same image.
func TestImage(t *testing.T) {
	t.Parallel()
	img := theImage(t)
	if id, again := img.id(t), buildImage(t, "b").id(t); id != again {
		t.Errorf("built twice, it is %s and %s", id, again)
	}
	var files []string
	for line := range strings.Lines(output(t, asRoot("find", img.rootfs, "-mindepth", "1", "-printf", "%M %U:%G /%P\n"))) {
		files = append(files, strings.TrimSpace(line))
	}
	for _, want := range []string{
		"-rwxr-xr-x 0:0 /usr/bin/qsidecar", "-rw-r--r-- 0:0 /etc/ssl/certs/ca-certificates.crt", "-rw-r--r-- 0:0 /etc/passwd",
		"-rw-r--r-- 0:0 /etc/group", "-rw-r--r-- 0:0 /usr/share/doc/qsidecar/LICENSES.txt", "drwxr-xr-x 0:0 /run", "drwxr-xr-x 65532:65532 /run/qsidecar", "drwxr-xr-x 0:0 /var/lib", "drwxr-x--- 65532:65532 /var/lib/qsidecar",
	} {
		if !slices.Contains(files, want) {
			t.Errorf("it has no %s, but %s", want, strings.Join(files, "\n"))
		}
	}
	// Empty ones are mount points of other tests.
	contents := strings.Fields(output(t, asRoot("find", img.rootfs, "-type", "f", "-size", "+0", "-printf", "%P\n")))
	if len(contents) != 5 {
		t.Errorf("its files are %q", contents)
	}
	c := img.config
	if c.User != "65532:65532" || !slices.Equal(c.Entrypoint, []string{"qsidecar", "serve"}) || len(c.Cmd) != 0 || len(c.Volumes) != 2 {
		t.Errorf("its config is %+v", c)
	}
	if c.Labels["org.opencontainers.image.version"] != "1.0.0" || c.Labels["org.opencontainers.image.revision"] != "0123456789abcdef" {
		t.Errorf("its labels are %v", c.Labels)
	}

	bin, err := elf.Open(program(t))
	if err != nil {
		t.Fatal(err)
	}
	defer bin.Close()
	for _, p := range bin.Progs {
		if p.Type == elf.PT_INTERP {
			t.Error("the program is not static")
		}
	}
	roots := []byte(output(t, asRoot("cat", img.rootfs+"/etc/ssl/certs/ca-certificates.crt")))
	trusted := 0
	for block, rest := pem.Decode(roots); block != nil; block, rest = pem.Decode(rest) {
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			t.Error(err)
		}
		trusted++
	}
	if trusted < 50 {
		t.Errorf("it trusts %d certificates", trusted)
	}
	ranAsRoot(t, "image", fmt.Sprintf("the same when it is built again: %.1f MB to fetch, %d files", float64(img.fetched(t))/1e6, len(contents)))
}

// TestImageName checks that all files use the same image name.
func TestImageName(t *testing.T) {
	t.Parallel()
	name := regexp.MustCompile(`qsidecar/qsidecar:[\w.]+`)
	manifests, err := filepath.Glob("kubernetes/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("compose/*/compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, file := range slices.Concat([]string{"../Makefile", "README.md"}, manifests, files) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, said := range name.FindAllString(string(text), -1) {
			found++
			if said != imageName {
				t.Errorf("%s uses the image %s, but the tests %s", file, said, imageName)
			}
		}
	}
	if found < 10 {
		t.Errorf("it is named %d times: this test looks at the wrong place", found)
	}
}

// volume creates a directory as a runtime does, with the owner and mode of the image's directory.
func volume(t *testing.T, img *image, at string) mount {
	t.Helper()
	dir := filepath.Join(folder(t), filepath.Base(at))
	output(t, asRoot("cp", "-a", img.rootfs+at, dir))
	return mount{from: dir, to: at}
}

// client is a container of another user, with only the socket's volume. Its groups decide whether
// it can connect.
func client(img *image, socket mount, groups []string, args ...string) container {
	c := img.container()
	c.user, c.groups, c.ownNetwork = "1000:1000", groups, true
	c.args = append([]string{"qsidecar"}, args...)
	c.mounts = []mount{socket}
	return c
}

// TestImageOnSQLite runs the image with only its two volumes.
func TestImageOnSQLite(t *testing.T) {
	t.Parallel()
	img := theImage(t)
	socket, state := volume(t, img, "/run/qsidecar"), volume(t, img, "/var/lib/qsidecar")
	serve := img.container()
	serve.mounts, serve.ownNetwork = []mount{socket, state}, true
	throughItsLife(t, serve, socket, img)
	left := strings.Fields(output(t, asRoot("find", state.from, "-type", "f", "-printf", "%f ")))
	if !slices.Contains(left, "qsidecar.db") {
		t.Errorf("in its volume are %q", left)
	}
	ranAsRoot(t, "image on SQLite", "its files read-only under bwrap, as 65532, clients in other containers through the socket's volume")
}

// TestImageOnPostgres runs the image with an address in a file and no config. The server's
// certificate is trusted because of a file in the documented directory.
func TestImageOnPostgres(t *testing.T) {
	t.Parallel()
	img := theImage(t)
	db := startPostgres(t, "db.internal", "app_sidecar", "app")
	at := url.URL{Scheme: "postgres", User: url.UserPassword("app_sidecar", password), Host: db.name, Path: "/app", RawQuery: "sslmode=verify-full"}
	const bundle = "/etc/ssl/certs/ca-certificates.crt"
	authorities := output(t, asRoot("cat", img.rootfs+bundle)) + db.authority
	socket := volume(t, img, "/run/qsidecar")
	serve := img.container()
	serve.env = append(slices.Clone(serve.env), "QSIDECAR_DATABASE=@/run/secrets/url", "QSIDECAR_SOCKET=/run/qsidecar/qsidecar.sock")
	serve.mounts = []mount{
		socket, secret(t, "/run/secrets", map[string]string{"url": at.String() + "\n"}), hosts(t, map[string]string{db.name: db.at}),
	}
	if code, out := serve.run(t); code != 1 || !strings.Contains(out, "certificate signed by unknown authority") {
		t.Errorf("on a server with an unknown certificate it ended with %d:\n%s", code, out)
	}
	serve.mounts = append(serve.mounts, mount{from: write(t, "bundle", authorities, 0o644), to: bundle, readOnly: true})
	throughItsLife(t, serve, socket, img)
	ranAsRoot(t, "image on PostgreSQL", "the same, on PostgreSQL "+db.Version+" by TLS, its address in a secret's file")
}

// throughItsLife starts the image, lets clients in other containers enqueue, claim and ack a job,
// stops the image while a job is claimed, and starts it again.
func throughItsLife(t *testing.T, serve container, socket mount, img *image) {
	t.Helper()
	before := snapshot(t, img)
	p := serve.start(t)
	p.answers()
	for key, want := range map[string]string{"Uid": "65532 65532 65532 65532", "Gid": "65532 65532 65532 65532", "CapEff": "0000000000000000", "NoNewPrivs": "1", "NSpid": fmt.Sprintf("%d 1", p.pid)} {
		if got := p.status(key); got != want {
			t.Errorf("it runs with %s %s, not %s", key, got, want)
		}
	}
	workers := []string{"65532"}
	mustRun := func(args ...string) string {
		t.Helper()
		code, out := client(img, socket, workers, args...).run(t)
		if code != 0 {
			t.Fatalf("qsidecar %s in another container: exit code %d, %s", strings.Join(args, " "), code, out)
		}
		return out
	}
	mustRun("enqueue", "mail", "hello")
	var job struct{ Payload, Lease string }
	if out := mustRun("claim", "mail"); json.Unmarshal([]byte(out), &job) != nil || job.Payload != `"hello"` {
		t.Fatalf("claim: %s", out)
	}
	mustRun("ack", job.Lease)
	if code, out := client(img, socket, nil, "enqueue", "mail", "x").run(t); code == 0 || !strings.Contains(out, "no permission to connect") {
		t.Errorf("a container without the group: exit code %d, %s", code, out)
	}

	// A graceful end waits for the workers with jobs, and delivers no more.
	mustRun("enqueue", "mail", "held")
	mustRun("enqueue", "mail", "next")
	app := client(theApp(t), socket, workers)
	app.args = []string{"/app", "mail"}
	app.env = []string{"QSIDECAR_SOCKET=/run/qsidecar/qsidecar.sock"}
	a, line := app.startWithInput(t)
	testwait.Until(t, "the app has its job", func() bool { return strings.Contains(a.out.String(), "working on: held") })
	p.signal(syscall.SIGTERM)
	testwait.Until(t, "it logs that it stops", func() bool { return strings.Contains(p.out.String(), "stopping") })
	if code, out := client(img, socket, workers, "claim", "mail").run(t); code != 5 || !strings.Contains(out, "draining") {
		t.Errorf("a claim while it drains: exit code %d, %s", code, out)
	}
	if p.gone() {
		t.Fatalf("it ended while a job was held:\n%s", p.out.String())
	}
	line()
	if code := a.wait(); code != 0 || !strings.Contains(a.out.String(), "acked") {
		t.Errorf("the app: exit code %d, %s", code, a.out.String())
	}
	if code := p.wait(); code != 0 {
		t.Errorf("after SIGTERM it ended with %d", code)
	}

	again := serve.start(t)
	again.answers()
	if out := mustRun("claim", "mail"); json.Unmarshal([]byte(out), &job) != nil || job.Payload != `"next"` {
		t.Errorf("after a restart, claim: %s", out)
	}

	// When it is killed, its socket stays in the volume, and the next one replaces it.
	again.signal(syscall.SIGKILL)
	again.wait()
	last := serve.start(t)
	last.answers()
	last.signal(syscall.SIGTERM)
	if code := last.wait(); code != 0 {
		t.Errorf("after SIGTERM it ended with %d", code)
	}
	if after := snapshot(t, img); after != before {
		t.Errorf("the image's own files changed from\n%s\nto\n%s", before, after)
	}
}

// answers waits until a probe inside the container succeeds.
func (p *process) answers() {
	p.t.Helper()
	testwait.Until(p.t, "ping inside the container", func() bool {
		if p.gone() {
			p.t.Fatalf("it ended with %d:\n%s", p.wait(), p.out.String())
		}
		code, _ := p.exec("qsidecar", "ping")
		return code == 0
	})
}

// snapshot returns all files of the image, except the mount points of other tests.
func snapshot(t *testing.T, img *image) string {
	t.Helper()
	return output(t, asRoot("find", img.rootfs, "-type", "f", "-size", "+0", "-printf", "/%P %s %T@\n"))
}
