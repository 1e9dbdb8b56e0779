package protocol

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/vmihailenco/msgpack/v5"
	"pgregory.net/rapid"
)

func TestShape(t *testing.T) {
	for _, test := range []struct {
		body string
		want error
	}{
		{"", errTruncated},
		{"\xc1", errReserved},
		{"\x80\x80", errTrailing},
		{"\x81", errTruncated},
		{"\x81\x01", errTruncated},
		{"\x81\x01\x02", nil},
		{"\xdd\xff\xff\xff\xff", errTruncated},
		{"\xde\x00\x01\x01", errTruncated},
		{"\xd9\x05abcd", errTruncated},
		{"\xd9", errTruncated},
		{"\xda\x00", errTruncated},
		{"\xc7\x00\x01", nil}, // an empty extension: length and type
		{"\xc7\x00", errTruncated},
		{"\xd8\x01" + strings.Repeat("x", 16), nil},
		{"\xd8\x01" + strings.Repeat("x", 15), errTruncated},
		{"\xcb1234567", errTruncated},
		{strings.Repeat("\x91", 16) + "\x01", nil},
		{strings.Repeat("\x91", 17) + "\x01", errTooDeep},
		{"\x93\x91\x01\x91\x02\x91\x03", nil}, // a list that ended no longer counts as depth
	} {
		if got := checkShape([]byte(test.body)); !errors.Is(got, test.want) {
			t.Errorf("%.40q: got %v, want %v", test.body, got, test.want)
		}
	}
}

// genValue generates any msgpack value of at most deep levels.
func genValue(deep int) *rapid.Generator[any] {
	scalars := []*rapid.Generator[any]{
		rapid.Just(any(nil)), rapid.Map(rapid.Bool(), asAny), rapid.Map(rapid.Int64(), asAny), rapid.Map(rapid.Uint64(), asAny),
		rapid.Map(rapid.Float32(), asAny), rapid.Map(rapid.Float64(), asAny), rapid.Map(rapid.String(), asAny),
		rapid.Map(rapid.StringN(0, 400, -1), asAny), rapid.Map(rapid.SliceOf(rapid.Byte()), asAny),
	}
	if deep == 0 {
		return rapid.OneOf(scalars...)
	}
	inner := genValue(deep - 1)
	return rapid.OneOf(append(scalars,
		rapid.Map(rapid.SliceOfN(inner, 0, 20), asAny),
		rapid.Map(rapid.MapOfN(rapid.String(), inner, 0, 20), asAny))...)
}

func asAny[T any](v T) any { return v }

// TestShapeAgreesWithTheLibrary checks that the shape check accepts what the library writes, and
// rejects every prefix of it.
func TestShapeAgreesWithTheLibrary(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var buf bytes.Buffer
		e := msgpack.NewEncoder(&buf)
		e.UseCompactInts(rapid.Bool().Draw(t, "compact"))
		if err := e.Encode(genValue(3).Draw(t, "value")); err != nil {
			t.Fatal(err)
		}
		if err := checkShape(buf.Bytes()); err != nil {
			t.Fatalf("%x: %v", buf.Bytes(), err)
		}
		part := buf.Bytes()[:rapid.IntRange(0, buf.Len()-1).Draw(t, "cut")]
		if err := checkShape(part); !errors.Is(err, errTruncated) {
			t.Fatalf("%x of %x: got %v, want %v", part, buf.Bytes(), err, errTruncated)
		}
	})
}
