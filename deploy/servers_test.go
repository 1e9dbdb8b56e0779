package deploy

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/internal/testserver"
)

// password is the password in databases and secrets of these tests.
const password = "a test's, no secret: #1"

var addresses atomic.Int64

// address returns a local address that no other test uses, so that a server can use the port in the
// manifests and compose files.
func address() string {
	pid := os.Getpid()
	return fmt.Sprintf("127.%d.%d.%d", 100+addresses.Add(1), pid>>8&0xff, pid&0xff)
}

// hosts returns a mount of a hosts file, as runtimes create it for each container.
func hosts(t *testing.T, names map[string]string) mount {
	t.Helper()
	text := "127.0.0.1 localhost\n"
	for name, at := range names {
		text += at + " " + name + "\n"
	}
	return mount{from: write(t, "hosts", text, 0o644), to: "/etc/hosts", readOnly: true}
}

// write creates a file in a new directory.
func write(t *testing.T, name, text string, mode os.FileMode) (path string) {
	t.Helper()
	return put(t, folder(t), name, text, mode)
}

// put creates a file with the given mode, whatever the umask is.
func put(t *testing.T, dir, name, text string, mode os.FileMode) (path string) {
	t.Helper()
	path = filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	return path
}

// postgres is a server as operators run it: with a name, the usual port, TLS, and passwords for
// every user.
type postgres struct {
	*testserver.Postgres
	name, at  string
	authority string // CA of its certificate, PEM
}

func startPostgres(t *testing.T, name, user, database string) *postgres {
	t.Helper()
	at := address()
	server, err := testserver.StartPostgres(t.Context(), "18", testserver.Options{Settings: map[string]string{"listen_addresses": at, "port": "5432"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	p := &postgres{Postgres: server, name: name, at: at}
	var cert, key string
	cert, key, p.authority = certificates(t, name)
	data := filepath.Join(strings.TrimSuffix(socketOf(t, server), "/"), "data")
	for file, text := range map[string]string{
		"server.crt": cert, "server.key": key,
		"pg_hba.conf": "local all postgres trust\nhostssl all all 0.0.0.0/0 scram-sha-256\n",
	} {
		writeAs(t, data, file, text)
	}
	exec := func(statements ...string) {
		t.Helper()
		if err := server.Exec(context.Background(), statements...); err != nil {
			t.Fatal(err)
		}
	}
	exec("ALTER SYSTEM SET ssl = on", "SELECT pg_reload_conf()",
		fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD '%s'", user, strings.ReplaceAll(password, "'", "''")),
		fmt.Sprintf("CREATE DATABASE %s OWNER %s", database, user))
	return p
}

// socketOf returns the directory of a server's socket.
func socketOf(t *testing.T, server *testserver.Postgres) string {
	t.Helper()
	_, query, _ := strings.Cut(server.Admin(), "host=")
	dir, _, _ := strings.Cut(query, "&")
	dir = strings.ReplaceAll(dir, "%2F", "/")
	if _, err := os.Stat(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// writeAs writes a file that belongs to the directory's owner, and that only the owner can read.
func writeAs(t *testing.T, dir, name, text string) {
	t.Helper()
	info, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	owner := info.Sys().(*syscall.Stat_t)
	if err := os.Chown(path, int(owner.Uid), int(owner.Gid)); err != nil {
		t.Fatal(err)
	}
}

// certificates returns a server's certificate and key, and the CA that signed it.
func certificates(t *testing.T, name string) (cert, key, authority string) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	encode := func(what string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: what, Bytes: der}))
	}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "a test's authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	must(err)
	itsKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	its := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: ca.NotBefore, NotAfter: ca.NotAfter, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	itsDER, err := x509.CreateCertificate(rand.Reader, its, ca, &itsKey.PublicKey, caKey)
	must(err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(itsKey)
	must(err)
	return encode("CERTIFICATE", itsDER), encode("PRIVATE KEY", keyDER), encode("CERTIFICATE", caDER)
}

// secret creates a directory of files as runtimes provide secrets: owned by root and readable for
// the container's group.
func secret(t *testing.T, to string, files map[string]string) mount {
	t.Helper()
	dir := folder(t)
	for name, text := range files {
		output(t, asRoot("chown", "0:65532", put(t, dir, name, text, 0o640)))
	}
	return mount{from: dir, to: to, readOnly: true}
}
