package databases

import (
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/internal/config"
)

var discard = slog.New(slog.DiscardHandler)

// TestOpenAll checks that all databases are opened, and that an error names the database.
func TestOpenAll(t *testing.T) {
	dir := t.TempDir()
	c := config.Default("", "sqlite:"+filepath.Join(dir, "new", "q.db"))
	open, err := OpenAll(t.Context(), &c, discard)
	if err != nil {
		t.Fatal(err)
	}
	if text := Describe(open["main"].Info()); !strings.HasPrefix(text, "sqlite ") || !strings.Contains(text, dir) {
		t.Errorf("the database is described as %q", text)
	}
	if err := CloseAll(open); err != nil {
		t.Error(err)
	}
	c.Databases["folder"] = config.Database{URL: "sqlite:" + dir}
	if _, err := OpenAll(t.Context(), &c, discard); err == nil || !strings.Contains(err.Error(), "databases.folder: ") {
		t.Errorf("with a folder as a database: %v", err)
	}
}

// TestSchemaOfMySQL checks that a schema is an error of the config, found without a connection.
func TestSchemaOfMySQL(t *testing.T) {
	c := config.Default("", "mysql://app@127.0.0.1:1/app")
	d := c.Databases["main"]
	d.Schema = "other"
	c.Databases["main"] = d
	_, err := Open(t.Context(), &c, "main", discard)
	if _, is := errors.AsType[*config.Error](err); !is || !strings.Contains(err.Error(), "MySQL and MariaDB have none") {
		t.Errorf("%v", err)
	}
}
