package adopted_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	backend "github.com/qsidecar/qsidecar/backends/mysql"
	"github.com/qsidecar/qsidecar/backends/mysql/diagnose"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// mysqlTexts are values of settings that are texts, or whose values the server doesn't list.
var mysqlTexts = map[string][]string{
	"sql_mode":                           {"ANSI", "NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH", "NO_UNSIGNED_SUBTRACTION,ANSI_QUOTES,PIPES_AS_CONCAT,HIGH_NOT_PRECEDENCE,IGNORE_SPACE", "NO_AUTO_VALUE_ON_ZERO,REAL_AS_FLOAT", ""},
	"time_zone":                          {"+13:45", "-11:00"},
	"character_set_client":               {"latin1", "ascii"},
	"character_set_connection":           {"latin1", "ascii"},
	"character_set_results":              {"latin1", "ascii"},
	"character_set_server":               {"latin1", "ucs2"},
	"collation_connection":               {"latin1_swedish_ci", "utf8mb4_general_ci"},
	"collation_server":                   {"latin1_swedish_ci"},
	"lc_time_names":                      {"de_DE"},
	"lc_messages":                        {"de_DE"},
	"init_connect":                       {"SET autocommit = 0", "SET sql_select_limit = 1, sql_mode = ANSI", "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE", "BEGIN"},
	"transaction_isolation":              {"SERIALIZABLE", "READ-UNCOMMITTED", "REPEATABLE-READ"},
	"tx_isolation":                       {"SERIALIZABLE", "READ-UNCOMMITTED", "REPEATABLE-READ"},
	"completion_type":                    {"CHAIN", "RELEASE"},
	"default_storage_engine":             {"MEMORY"},
	"default_tmp_storage_engine":         {"MEMORY"},
	"default_collation_for_utf8mb4":      {"utf8mb4_general_ci"},
	"optimizer_switch":                   {"derived_merge=off", "index_merge=off,mrr=on,mrr_cost_based=off", "materialization=off,semijoin=off", "index_condition_pushdown=off,block_nested_loop=off", "skip_scan=off", "prefer_ordering_index=off"},
	"old_mode":                           {"UTF8_IS_UTF8MB3,NO_PROGRESS_INFO,ZERO_DATE_TIME_CAST", ""},
	"group_replication_consistency":      nil, // not a member of a group
	"session_track_gtids":                {"OWN_GTID", "ALL_GTIDS"},
	"session_track_transaction_info":     {"STATE", "CHARACTERISTICS"},
	"binlog_format":                      {"ROW"}, // another one refuses READ COMMITTED, and is the server's choice
	"note_verbosity":                     {"all"},
	"sql_generate_invisible_primary_key": {"ON"},
}

// ownChoice are settings that decide what the server accepts, whatever a session does: limits that no job fits, and switches for
// administrators.
var ownChoice = []string{
	"max_allowed_packet", "net_buffer_length", "max_heap_table_size", "tmp_table_size", "max_user_connections", "sql_log_bin", "sql_require_primary_key", "pseudo_thread_id", "gtid_next",
	"debug", "debug_sync", "tmp_memory_table_size", "tmp_disk_table_size", "max_tmp_session_space_usage", "connection_memory_limit", "global_connection_memory_limit",
	"thread_stack", "max_session_mem_used", "require_row_format", "sql_error_log_rate_limit",
}

// mysqlChanges are the changes that a server, or a proxy, can give to sessions.
func mysqlChanges(t *testing.T, m *testserver.MySQL, db *sql.DB, rows func(query string) ([]string, error)) (all []change) {
	query := "SELECT CONCAT_WS('\t', LOWER(variable_name), variable_type, COALESCE(numeric_min_value, ''), COALESCE(numeric_max_value, ''), COALESCE(enum_value_list, ''), COALESCE(global_value, '')) " +
		"FROM information_schema.system_variables WHERE variable_scope = 'SESSION' AND read_only = 'NO' ORDER BY 1"
	if !strings.Contains(m.Version, "MariaDB") {
		query = "SELECT CONCAT_WS('\t', i.variable_name, CASE WHEN g.variable_value IN ('ON', 'OFF') THEN 'BOOLEAN' WHEN i.max_value > 0 THEN 'INT' ELSE 'VARCHAR' END, i.min_value, i.max_value, '', g.variable_value) " +
			"FROM performance_schema.variables_info i JOIN performance_schema.session_variables s ON s.variable_name = i.variable_name JOIN performance_schema.global_variables g ON g.variable_name = i.variable_name ORDER BY 1"
	}
	found, err := rows(query)
	if err != nil {
		t.Fatal(err)
	}
	scratch, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	closed(t, scratch)
	for _, row := range found {
		x := strings.Split(row, "\t")
		name, kind, least, most, listed, present := x[0], x[1], x[2], x[3], x[4], x[5]
		if _, err := scratch.ExecContext(t.Context(), fmt.Sprintf("SET SESSION %[1]s = @@GLOBAL.%[1]s", name)); err != nil {
			continue // it isn't one of sessions
		}
		candidates, texts := mysqlTexts[name]
		switch {
		case texts:
		case kind == "BOOLEAN":
			candidates = []string{"ON", "OFF"}
		case kind == "ENUM", kind == "SET", kind == "FLAGSET":
			candidates = strings.Split(listed, ",")
			if kind == "FLAGSET" {
				candidates = nil
			}
		case strings.Contains(kind, "INT"), kind == "DOUBLE":
			candidates = []string{least, most}
		}
		for _, v := range candidates {
			if v != present && !slices.Contains(ownChoice, name) {
				all = append(all, change{name, v})
			}
		}
	}
	for _, v := range mysqlTexts["init_connect"] {
		all = append(all, change{"init_connect", v})
	}
	return all
}

// mysqlLiteral is a value after SET GLOBAL.
func mysqlLiteral(v string) string {
	if v != "" && strings.Trim(v, "0123456789.-") == "" {
		return v
	}
	if v == "NULL" {
		return "DEFAULT"
	}
	return "'" + strings.ReplaceAll(v, "'", "''") + "'"
}

// TestHostileSettingsOfMySQL changes each setting that sessions of a MySQL or MariaDB server begin with.
func TestHostileSettingsOfMySQL(t *testing.T) {
	t.Parallel()
	for _, kind := range testserver.MySQLKinds() {
		if kind == testserver.MariaDB105 {
			continue
		}
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			m, err := testserver.StartMySQL(t.Context(), kind, testserver.Options{Own: true})
			if errors.Is(err, testserver.ErrUnavailable) {
				t.Log(err)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := m.Stop(); err != nil {
					t.Error(err)
				}
			})
			database := m.Database(t)
			db, err := m.Open(database)
			if err != nil {
				t.Fatal(err)
			}
			closed(t, db)
			c, err := db.Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			closed(t, c)
			exec := func(ctx context.Context, sql string) error {
				_, err := c.ExecContext(ctx, sql)
				return err
			}
			rows := func(query string) ([]string, error) { return texts(t.Context(), c, query) }
			for _, text := range []string{
				"SET SESSION wait_timeout = 86400",
				"CREATE TABLE a (region varchar(9), made datetime(6), payload varchar(99), state varchar(9) NOT NULL DEFAULT 'new', error text, worker text, since datetime(6), PRIMARY KEY (region, made), KEY (state, region, made))",
				"CREATE TABLE audit (payload text)",
				"CREATE TRIGGER note BEFORE UPDATE ON a FOR EACH ROW INSERT INTO audit VALUES (NEW.payload)",
			} {
				if err := exec(t.Context(), text); err != nil {
					t.Fatalf("%s: %v", text, err)
				}
			}
			h := &unruly{
				t: t, time: "'2026-03-01 10:00:00.5'", id: "eu1,2026-03-01 10:00:00.500000", owner: exec, rows: rows,
				fresh: []string{"DELETE FROM a", "DELETE FROM audit"},
				open: func(ctx context.Context) (backends.Engine, error) {
					s, err := backend.Open(ctx, backend.Options{URL: m.URL(database)})
					if err != nil {
						return nil, err
					}
					return diagnose.New(s), nil
				},
			}
			engine, err := h.open(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			own, err := rows("SELECT CONCAT('`', table_name, '`') FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name LIKE 'qsidecar\\_%'")
			if err != nil {
				t.Fatal(err)
			}
			h.fresh = append(h.fresh, "DROP TABLE IF EXISTS "+strings.Join(own, ", "))
			if err := engine.Close(); err != nil {
				t.Fatal(err)
			}
			before := map[string]string{} // the values to go back to
			h.set = func(all []change) error {
				for name, value := range before {
					if err := exec(context.WithoutCancel(t.Context()), fmt.Sprintf("SET GLOBAL %s = %s", name, mysqlLiteral(value))); err != nil {
						return fmt.Errorf("%s back to %s: %w", name, value, err)
					}
				}
				clear(before)
				for _, x := range all {
					was, err := rows("SELECT CAST(COALESCE(@@GLOBAL." + x.name + ", 'NULL') AS CHAR)")
					if err != nil {
						return err
					}
					if err := exec(t.Context(), fmt.Sprintf("SET GLOBAL %s = %s", x.name, mysqlLiteral(x.value))); err != nil {
						return err
					}
					before[x.name] = was[0]
				}
				return nil
			}
			h.each(h.accepted(mysqlChanges(t, m, db, rows)))
		})
	}
}
