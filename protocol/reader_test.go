package protocol

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"
)

// frameOf prefixes a body with its length.
func frameOf(body string) string {
	return string(binary.BigEndian.AppendUint32(nil, uint32(len(body)))) + body
}

// readAll returns the messages of a stream and the error that ended it. A clean end is "EOF".
func readAll(in io.Reader, maxFrame int) (bodies []string, codec Codec, end string) {
	r := NewReader(in, maxFrame)
	for {
		b, c, err := r.Next()
		if err != nil {
			if e, ok := errors.AsType[*Error](err); ok {
				return bodies, c, string(e.Code)
			}
			return bodies, c, err.Error()
		}
		bodies = append(bodies, string(b))
	}
}

func TestReader(t *testing.T) {
	long := strings.Repeat("x", 100)
	for _, test := range []struct {
		name   string
		stream string
		bodies []string
		codec  Codec
		end    string
	}{
		{"nothing", "", nil, 0, "EOF"},
		{"frames", frameOf("abc") + frameOf("") + frameOf(long), []string{"abc", "", long}, Msgpack, "EOF"},
		{"lines", "{a}\n{b}\r\n\n \t\r\n{c}\n", []string{"{a}", "{b}", "{c}"}, JSON, "EOF"},
		{"blank first", "\r\n\n  {}\n", []string{"{}"}, JSON, "EOF"},
		{"blank only", "\n\n", nil, JSON, "EOF"},
		{"later lines are not looked at", "{}\nhello\n", []string{"{}", "hello"}, JSON, "EOF"},
		{"no newline at the end", "{}\n{\"a\":[1,{\"a\":1,\"a\":2}]}", []string{"{}", `{"a":[1,{"a":1,"a":2}]}`}, JSON, "EOF"},
		{"blanks at the end", "{}  ", []string{"{}  "}, JSON, "EOF"},
		{"half a line", "{}\n{\"a\":", []string{"{}"}, JSON, "bad_frame"},
		{"half a frame", frameOf("abc") + frameOf("abc")[:6], []string{"abc"}, Msgpack, "bad_frame"},
		{"half a head", "\x00\x00", nil, Msgpack, "bad_frame"},
		{"a head alone", frameOf("abc")[:4], nil, Msgpack, "bad_frame"},
		{"http", "GET / HTTP/1.1\r\n\r\n", nil, HTTP, "bad_frame"},
		{"http by its longest method", "OPTIONS * HTTP/1.1\r\n\r\n", nil, HTTP, "bad_frame"},
		{"a method alone", "DELETE", nil, JSON, "bad_frame"},
		{"like a method", "PUSH / HTTP/1.1\r\n\r\n", nil, JSON, "bad_frame"},
		{"byte 5", "\x05\x00\x00\x00", nil, JSON, "bad_frame"},
		{"2^32-1 first", "\xff\xff\xff\xff", nil, JSON, "bad_frame"},
		{"2^32-1 later", frameOf("a") + "\xff\xff\xff\xff", []string{"a"}, Msgpack, "too_large"},
		{"a frame at the limit", frameOf(long), []string{long}, Msgpack, "EOF"},
		{"a frame over it", frameOf(long + "x"), nil, Msgpack, "too_large"},
		{"a line at the limit", "{" + long[1:] + "\n", []string{"{" + long[1:]}, JSON, "EOF"},
		{"a line at the limit and \\r", "{" + long[1:] + "\r\n", []string{"{" + long[1:]}, JSON, "EOF"},
		{"a line over it", "{" + long + "\n", nil, JSON, "too_large"},
		{"a line over it without an end", "{" + long, nil, JSON, "too_large"},
	} {
		for chunk, in := range map[string]io.Reader{
			"whole": strings.NewReader(test.stream), "bytes": iotest.OneByteReader(strings.NewReader(test.stream)),
			"halves": iotest.HalfReader(strings.NewReader(test.stream)), "eof with data": iotest.DataErrReader(strings.NewReader(test.stream)),
		} {
			bodies, codec, end := readAll(in, 100)
			if !slices.Equal(bodies, test.bodies) || end != test.end || codec != test.codec && len(bodies) > 0 {
				t.Errorf("%s in %s: got %q in %v, then %s; want %q in %v, then %s", test.name, chunk, bodies, codec, end, test.bodies, test.codec, test.end)
			}
		}
	}
}

// TestReaderSplitsAnyChunks checks that the messages do not depend on the sizes of the reads.
func TestReaderSplitsAnyChunks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		msgpack := rapid.Bool().Draw(t, "msgpack")
		var stream []byte
		var want []string
		for _, n := range rapid.SliceOf(rapid.OneOf(rapid.IntRange(0, 300), rapid.IntRange(0, 40_000))).Draw(t, "sizes") {
			text := "{" + strings.Repeat("x", n) + "}"
			want = append(want, text)
			if msgpack {
				stream = append(stream, frameOf(text)...)
			} else {
				stream = append(append(stream, text...), rapid.SampledFrom([]string{"\n", "\r\n", "\n\n"}).Draw(t, "end")...)
			}
		}
		in := &chunks{left: stream, sizes: rapid.SliceOfN(rapid.IntRange(1, 10_000), 1, -1).Draw(t, "chunks")}
		got, _, end := readAll(in, 64<<10)
		if !slices.Equal(got, want) || end != "EOF" {
			t.Fatalf("%d messages, then %s; want %d, then EOF", len(got), end, len(want))
		}
	})
}

// chunks is a reader whose reads have the given sizes in turn.
type chunks struct {
	left  []byte
	sizes []int
	n     int
}

func (c *chunks) Read(p []byte) (int, error) {
	if len(c.left) == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.left[:min(len(c.left), c.sizes[c.n%len(c.sizes)])])
	c.left = c.left[n:]
	c.n++
	return n, nil
}

// TestReaderErrorsAreSticky checks that nothing after a broken frame is returned as a message.
func TestReaderErrorsAreSticky(t *testing.T) {
	r := NewReader(strings.NewReader("\x00\x00\x00\x09"+frameOf("abc")), 8)
	for range 3 {
		var e *Error
		if _, _, err := r.Next(); !errors.As(err, &e) || e.Code != CodeTooLarge {
			t.Fatalf("got %v, want too_large again", err)
		}
	}
}

// TestReaderContinuesAfterATimeout checks that a timeout of the connection loses no bytes.
func TestReaderContinuesAfterATimeout(t *testing.T) {
	whole := frameOf("abc")
	r := NewReader(iotest.TimeoutReader(iotest.OneByteReader(strings.NewReader(whole))), 100)
	if _, _, err := r.Next(); !errors.Is(err, iotest.ErrTimeout) {
		t.Fatalf("got %v, want the reader's own time-out", err)
	}
	if !r.Partial() {
		t.Error("a byte was received, but Partial is false")
	}
	if b, _, err := r.Next(); err != nil || string(b) != "abc" {
		t.Fatalf("got %q and %v, want the message", b, err)
	}
	if r.Partial() {
		t.Error("the buffer is empty, but Partial is true")
	}
}

func TestReaderFailsAfterManyEmptyReads(t *testing.T) {
	if _, _, err := NewReader(nothing{}, 100).Next(); !errors.Is(err, io.ErrNoProgress) {
		t.Fatalf("got %v, want io.ErrNoProgress", err)
	}
}

type nothing struct{}

func (nothing) Read([]byte) (int, error) { return 0, nil }

// TestReaderReportsPartialMessages checks that OnPartial is called once for a message that stops half-way, and never
// for a message that arrives whole.
func TestReaderReportsPartialMessages(t *testing.T) {
	for _, test := range []struct {
		name   string
		pieces []string
		want   string
	}{
		{"whole frames", []string{frameOf("abc") + frameOf("d"), frameOf("e")}, "abc d e EOF"},
		{"half a frame", []string{frameOf("abc")[:2], frameOf("abc")[2:5], frameOf("abc")[5:] + frameOf("d")}, "true false abc d EOF"},
		{"two and a half", []string{frameOf("a") + frameOf("b") + frameOf("c")[:3], frameOf("c")[3:]}, "a b true false c EOF"},
		{"whole lines", []string{"{1}\n{2}\n", "{3}\n"}, "{1} {2} {3} EOF"},
		{"half a line", []string{"{", "1", "}\n{2}\n"}, "true false {1} {2} EOF"},
		{"blank lines are no part of a message", []string{"{1}\n\r\n", "  ", "\n", "{2}\n"}, "{1} {2} EOF"},
		{"cut off", []string{frameOf("abc")[:6]}, "true bad_frame"},
	} {
		var heard []string
		r := NewReader(&pieces{test.pieces}, 100)
		r.OnPartial = func(p bool) { heard = append(heard, fmt.Sprint(p)) }
		for {
			b, _, err := r.Next()
			if e, ok := errors.AsType[*Error](err); ok {
				heard = append(heard, string(e.Code))
				break
			}
			if err != nil {
				heard = append(heard, err.Error())
				break
			}
			heard = append(heard, string(b))
		}
		if got := strings.Join(heard, " "); got != test.want {
			t.Errorf("%s: got %s, want %s", test.name, got, test.want)
		}
	}
}

// pieces is a reader that returns one string with each read.
type pieces struct{ left []string }

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.left) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.left[0])
	p.left = p.left[1:]
	return n, nil
}

// allocated returns how many bytes f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// TestReaderMemory checks that memory grows with the bytes received.
func TestReaderMemory(t *testing.T) {
	declared := "\x03\xff\xff\xff" // 64 MiB minus one byte
	if got := allocated(func() { readAll(strings.NewReader(declared+"abc"), MaxMaxFrame) }); got > 64<<10 {
		t.Errorf("a frame of which 3 bytes came took %d bytes", got)
	}
	endless := io.MultiReader(strings.NewReader("{"), io.LimitReader(zeros{}, 100<<20))
	if got := allocated(func() { readAll(endless, DefaultMaxFrame) }); got > 4*DefaultMaxFrame {
		t.Errorf("a line of 100 MiB took %d bytes", got)
	}
	blank := io.LimitReader(blanks{}, 8<<20)
	if got := allocated(func() { readAll(blank, DefaultMaxFrame) }); got > 64<<10 {
		t.Errorf("8 MiB of blank lines took %d bytes", got)
	}

	in := strings.NewReader(frameOf(strings.Repeat("x", 1<<20)) + frameOf("y"))
	r := NewReader(in, DefaultMaxFrame)
	for range 2 {
		if _, _, err := r.Next(); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := r.Next(); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if len(r.buf) > keepBuffer {
		t.Errorf("an idle connection keeps a buffer of %d bytes after a big message", len(r.buf))
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

type blanks struct{}

func (blanks) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '\n'
	}
	return len(p), nil
}

// TestReaderReportsItsBufferSize checks that OnBuffer is called with each size beyond the ordinary one
// before the buffer grows, and with 0 afterwards. An error of OnBuffer ends the reading.
func TestReaderReportsItsBufferSize(t *testing.T) {
	large := `{"a":"` + strings.Repeat("x", 1<<20) + "\"}\n"
	r := NewReader(strings.NewReader("{}\n"+large+"{}\n"), 4<<20)
	var sizes []int
	r.OnBuffer = func(size int) error {
		sizes = append(sizes, size)
		return nil
	}
	for i := range 3 {
		if body, _, err := r.Next(); err != nil || len(body) < 2 {
			t.Fatalf("message %d: %d bytes, %v", i, len(body), err)
		}
	}
	if _, _, err := r.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("the end: %v", err)
	}
	if want := []int{4 << 20, 0}; !slices.Equal(sizes, want) {
		t.Errorf("for a line OnBuffer got %v, want %v", sizes, want)
	}
	sizes = nil
	r = NewReader(strings.NewReader(frameOf(large)), 4<<20)
	r.OnBuffer = func(size int) error {
		sizes = append(sizes, size)
		return nil
	}
	if _, _, err := r.Next(); err != nil || !slices.Equal(sizes, []int{4 + len(large)}) {
		t.Errorf("for a frame of %d bytes OnBuffer got %v, %v", len(large), sizes, err)
	}
	full := errors.New("full")
	r = NewReader(strings.NewReader(large), 4<<20)
	r.OnBuffer = func(size int) error {
		return full
	}
	if _, _, err := r.Next(); !errors.Is(err, full) {
		t.Errorf("where there is no room: %v", err)
	}
}
