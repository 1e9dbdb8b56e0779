package sqlserver

import (
	"database/sql"
	"database/sql/driver"
	"fmt"
	"time"

	mssql "github.com/microsoft/go-mssqldb"
)

// value is a variable: its type in PostgreSQL, and its value as a text.
type value struct {
	kind string
	text *string
}

// textOf is a value as PostgreSQL reads it.
func textOf(v any) *string {
	var s string
	switch v := v.(type) {
	case nil, sql.NullInt64, sql.NullString:
		return nil
	case mssql.NVarCharMax:
		s = string(v)
	case string:
		s = v
	case []byte:
		if v == nil {
			return nil
		}
		s = fmt.Sprintf(`\x%x`, v)
	case time.Time:
		s = v.UTC().Format("2006-01-02 15:04:05.999999")
	default:
		s = fmt.Sprint(v)
	}
	return &s
}

// answered is a value as go-mssqldb returns it.
func answered(v any) driver.Value {
	switch v := v.(type) {
	case int16:
		return int64(v)
	case int32:
		return int64(v)
	case time.Time:
		return v.UTC()
	}
	return v
}
