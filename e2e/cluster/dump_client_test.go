package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"

	"github.com/qsidecar/qsidecar/e2e/kit/databases"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testserver/debian"
)

// client is the Debian package with the programs that dump and load the databases of a kind of server.
type client struct{ suite, name, bin, dump, load string }

// pg_dump of PostgreSQL 15 dumps older servers, and pg_restore loads into newer ones.
var postgresClient = client{"bookworm", "postgresql-client-15", "usr/lib/postgresql/15/bin", "pg_dump", "pg_restore"}

var mysqlClients = map[testserver.Kind]client{
	testserver.MySQL97:     {"sid", "mysql-client-core", "usr/bin", "mysqldump", "mysql"},
	testserver.MariaDB1011: {"bookworm", "mariadb-client", "usr/bin", "mariadb-dump", "mariadb"},
}

// run runs a program of the package, with its own libraries, and returns its output.
func (c client) run(ctx context.Context, program string, input []byte, args ...string) ([]byte, error) {
	home, err := debian.Root(ctx, c.name+"-"+c.suite, c.suite, c.name)
	if err != nil {
		return nil, err
	}
	loaders, err := filepath.Glob(filepath.Join(home, "lib/*/ld-linux-*.so.*"))
	if len(loaders) == 0 && err == nil {
		loaders, err = filepath.Glob(filepath.Join(home, "usr/lib/*/ld-linux-*.so.*"))
	}
	if len(loaders) == 0 {
		return nil, errors.Join(err, fmt.Errorf("%s has no loader", home))
	}
	arch := filepath.Base(filepath.Dir(loaders[0]))
	libraries := filepath.Join(home, "lib", arch) + ":" + filepath.Join(home, "usr/lib", arch)
	cmd := exec.CommandContext(ctx, loaders[0], append([]string{"--library-path", libraries, filepath.Join(home, c.bin, program)}, args...)...)
	var output, diagnostics bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), &output, &diagnostics
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s: %w: %s", program, err, diagnostics.String())
	}
	return output.Bytes(), nil
}

// login returns the options with which a program of a client connects.
func login(p *databases.MySQL) []string {
	return []string{"--no-defaults", "--host=" + p.Host, "--port=" + p.Port, "--user=" + p.User, "--password=" + p.Password}
}
