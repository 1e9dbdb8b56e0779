package postgres

import (
	"bytes"
	"math"
	"testing"

	"github.com/jackc/pgx/v5/pgtype"
)

// TestInt8Array compares the encoding of bigint[] with the library's, and shows that it allocates nothing.
func TestInt8Array(t *testing.T) {
	m := pgtype.NewMap()
	own := pgtype.NewMap()
	known, _ := own.TypeForOID(pgtype.Int8ArrayOID)
	own.RegisterType(&pgtype.Type{Name: known.Name, OID: known.OID, Codec: int8Array{known.Codec}})
	for _, all := range [][]int64{nil, {}, {0}, {1, -1, math.MaxInt64, math.MinInt64}} {
		want, err := m.Encode(pgtype.Int8ArrayOID, pgtype.BinaryFormatCode, all, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := own.Encode(pgtype.Int8ArrayOID, pgtype.BinaryFormatCode, all, nil)
		if err != nil || !bytes.Equal(got, want) || (got == nil) != (want == nil) {
			t.Errorf("%v is encoded as %x, want %x; error: %v", all, got, want, err)
		}
		text, err := own.Encode(pgtype.Int8ArrayOID, pgtype.TextFormatCode, all, nil)
		if want, _ := m.Encode(pgtype.Int8ArrayOID, pgtype.TextFormatCode, all, nil); err != nil || !bytes.Equal(text, want) {
			t.Errorf("%v is encoded as the text %s, want %s; error: %v", all, text, want, err)
		}
	}
	var values any = make([]int64, 100)
	buf := make([]byte, 0, 4096)
	if n := testing.AllocsPerRun(100, func() { _, _ = own.Encode(pgtype.Int8ArrayOID, pgtype.BinaryFormatCode, values, buf) }); n != 0 {
		t.Errorf("100 elements are encoded with %v allocations", n)
	}
}
