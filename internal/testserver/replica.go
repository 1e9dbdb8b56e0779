package testserver

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/qsidecar/qsidecar/internal/testwait"
)

// SourceSettings returns the settings of a server that gets a Replica.
func SourceSettings() map[string]string {
	return map[string]string{"server-id": "1", "log-bin": "binlog", "binlog-format": "ROW"}
}

// Replica starts a read-only server that replicates m. m must have SourceSettings and no data yet.
func (m *MySQL) Replica(ctx context.Context) (*MySQL, error) {
	file, at, err := m.position(ctx)
	if err != nil {
		return nil, err
	}
	settings := SourceSettings()
	maps.Copy(settings, map[string]string{"server-id": "2", "read-only": "ON"})
	r, err := StartMySQL(ctx, m.Kind, Options{Durable: true, Settings: settings})
	if err != nil {
		return nil, err
	}
	change, more := "REPLICATION SOURCE TO SOURCE", ", GET_SOURCE_PUBLIC_KEY = 1"
	if origins[m.Kind].maria {
		change, more = "MASTER TO MASTER", ""
	}
	keyword := change[strings.LastIndex(change, " ")+1:]
	err = r.Exec(ctx, fmt.Sprintf("CHANGE %[1]s_HOST = '%[3]s', %[2]s_PORT = %[4]s, %[2]s_USER = '%[5]s', %[2]s_PASSWORD = '%[6]s', %[2]s_LOG_FILE = '%[7]s', %[2]s_LOG_POS = %[8]s%[9]s",
		change, keyword, m.Host, m.Port, m.User, strings.ReplaceAll(m.Password, "'", "''"), file, at, more), r.replica("START"))
	if err != nil {
		return nil, errors.Join(err, r.Stop())
	}
	return r, nil
}

// replica returns the statement that does verb to the replication.
func (m *MySQL) replica(verb string) string {
	if origins[m.Kind].maria {
		return strings.Replace(verb+" SLAVE", "RESET SLAVE", "RESET SLAVE ALL", 1)
	}
	return strings.Replace(verb+" REPLICA", "RESET REPLICA", "RESET REPLICA ALL", 1)
}

// position returns the current end of the binary log.
func (m *MySQL) position(ctx context.Context) (file, at string, err error) {
	statement := "SHOW BINARY LOG STATUS"
	if origins[m.Kind].maria {
		statement = "SHOW MASTER STATUS"
	}
	row, err := m.row(ctx, statement)
	if err != nil {
		return "", "", err
	}
	return row[0], row[1], nil
}

// row returns the first row of a query as texts.
func (m *MySQL) row(ctx context.Context, statement string) ([]string, error) {
	_, row, err := m.nameAndRow(ctx, statement)
	return row, err
}

// named returns the first row of a query by the names of its columns.
func (m *MySQL) named(ctx context.Context, statement string) (map[string]string, error) {
	names, row, err := m.nameAndRow(ctx, statement)
	all := map[string]string{}
	for i, value := range row {
		all[strings.ToLower(names[i])] = value
	}
	return all, err
}

func (m *MySQL) nameAndRow(ctx context.Context, statement string) (names, row []string, err error) {
	db, err := m.Open("")
	if err != nil {
		return nil, nil, err
	}
	defer db.Close()
	rows, err := db.QueryContext(ctx, statement)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", statement, err)
	}
	defer rows.Close()
	names, err = rows.Columns()
	if err != nil || !rows.Next() {
		return nil, nil, fmt.Errorf("%s returned no row: %w", statement, errors.Join(err, rows.Err()))
	}
	texts, into := make([]sql.NullString, len(names)), make([]any, len(names))
	for i := range texts {
		into[i] = &texts[i]
	}
	if err := rows.Scan(into...); err != nil {
		return nil, nil, err
	}
	row = make([]string, len(names))
	for i, t := range texts {
		row[i] = t.String
	}
	return names, row, rows.Close()
}

// CaughtUp waits until the replica has all data that the source has now.
func (m *MySQL) CaughtUp(ctx context.Context, source *MySQL) error {
	file, at, err := source.position(ctx)
	if err != nil {
		return err
	}
	wait := "SOURCE_POS_WAIT"
	if origins[m.Kind].maria {
		wait = "MASTER_POS_WAIT"
	}
	return testwait.Poll(ctx, func(ctx context.Context) error {
		row, err := m.row(ctx, fmt.Sprintf("SELECT %s('%s', %s, 1)", wait, file, at))
		if err == nil && (row[0] == "" || row[0] == "-1") {
			err = fmt.Errorf("the replica has not all up to %s:%s", file, at)
		}
		return err
	})
}

// Promote ends the replication, so that the replica accepts writes.
func (m *MySQL) Promote(ctx context.Context) error {
	return m.Exec(ctx, m.replica("STOP"), m.replica("RESET"), "SET GLOBAL read_only = OFF")
}

// ownID gives the copy of a data directory its own server id. Servers with the same id do not
// replicate each other.
func (m *MySQL) ownID() error {
	err := os.Remove(filepath.Join(m.dir, "data", "auto.cnf"))
	if errors.Is(err, os.ErrNotExist) {
		return nil // MariaDB
	}
	return err
}
